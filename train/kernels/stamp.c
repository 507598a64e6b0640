/* An operation of MXNet's engine that notes the time: boot_time_s (logging/clock.py) into *slot. In
   C, since a Python function would wait for the interpreter's lock and hold up a worker. */
#include <time.h>

void rn50_stamp(void *run_context, void *slot) {
  struct timespec now;
  (void)run_context;
  clock_gettime(CLOCK_BOOTTIME, &now);
  *(double *)slot = now.tv_sec + 1e-9 * now.tv_nsec;
}
