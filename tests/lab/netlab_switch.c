/* A switch for emulated hosts: TAP ports netlab1..netlabN, each with an uplink and a downlink of a
 * given rate, and a fixed one-way delay. User space, because not every kernel has netem.
 *
 *   netlab_switch PORTS RATE_MBIT DELAY_US [BUFFER_KB]     (rate 0: unlimited)
 *
 * Port i belongs to MAC 02:4e:4c:00:00:i (hexadecimal). A frame that arrives at t from port a for
 * port b leaves a's uplink at u = max(t, uplink free) + size / rate, b's downlink at
 * d = max(u, downlink free) + size / rate less the size (cut-through: the two overlap), and is
 * delivered at d + delay. A downlink whose queue holds BUFFER_KB drops, as a real one does.
 * Prints "ready" when the ports exist; on SIGTERM frames, bytes and drops to stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_PORTS = 64,
    MAX_FRAME = 68000,   /* segmentation is left to nobody: one read moves up to 64 KB */
    VNET_HEADER = 10,    /* struct virtio_net_hdr in front of each frame */
    READS_PER_TURN = 8,  /* then the other ports have their turn */
};
/* An uplink may be booked this far ahead; beyond it the sender waits in the kernel's queue. */
static const int64_t BOOKED_NS = 1000000;

struct frame {
    struct frame *next;
    int64_t due_ns;
    size_t size;
    unsigned char bytes[];
};

struct port {
    int fd;
    int64_t uplink_free_ns, downlink_free_ns;
    struct frame *first, *last;
    size_t queued_bytes;
};

static struct port ports[MAX_PORTS];
static int port_count;
static double ns_per_byte;
static int64_t delay_ns;
static size_t buffer_bytes;
static uint64_t frames, bytes, drops;
static volatile sig_atomic_t stopping;

static void stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static void open_port(int index) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    snprintf(request.ifr_name, IFNAMSIZ, "netlab%d", index + 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0 ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) {
        fprintf(stderr, "netlab_switch: %s on /dev/net/tun: %s\n", request.ifr_name,
                strerror(errno));
        exit(1);
    }
    ports[index].fd = fd;
}

static void enqueue(struct port *to, const unsigned char *data, size_t size, int64_t sent_ns) {
    if (to->queued_bytes + size > buffer_bytes) {
        drops++;
        return;
    }
    struct frame *frame = malloc(sizeof *frame + size);
    if (!frame) {
        drops++;
        return;
    }
    memcpy(frame->bytes, data, size);
    frame->size = size;
    frame->next = NULL;
    to->downlink_free_ns = later(sent_ns, to->downlink_free_ns) + (int64_t)((double)size * ns_per_byte);
    frame->due_ns = to->downlink_free_ns + delay_ns;
    if (to->last)
        to->last->next = frame;
    else
        to->first = frame;
    to->last = frame;
    to->queued_bytes += size;
}

static void deliver(struct port *port, int64_t now) {
    while (port->first && port->first->due_ns <= now) {
        struct frame *frame = port->first;
        if (write(port->fd, frame->bytes, frame->size) < 0 && errno == EAGAIN)
            return;
        port->first = frame->next;
        if (!port->first)
            port->last = NULL;
        port->queued_bytes -= frame->size;
        free(frame);
    }
}

static void receive(int from) {
    static unsigned char data[MAX_FRAME];
    struct port *port = &ports[from];
    for (int turn = 0; turn < READS_PER_TURN; turn++) {
        int64_t now = now_ns();
        if (port->uplink_free_ns > now + BOOKED_NS)
            return;
        ssize_t size = read(port->fd, data, sizeof data);
        if (size <= VNET_HEADER + 6)
            return;
        frames++;
        bytes += (uint64_t)size;
        int64_t start = later(now, port->uplink_free_ns);
        port->uplink_free_ns = start + (int64_t)((double)size * ns_per_byte);
        const unsigned char *mac = data + VNET_HEADER;
        static const unsigned char ours[5] = {0x02, 0x4e, 0x4c, 0, 0};
        int to = mac[5] - 1;
        if (!memcmp(mac, ours, sizeof ours) && to >= 0 && to < port_count)
            enqueue(&ports[to], data, (size_t)size, start);
        else /* broadcast and multicast: address resolution */
            for (int other = 0; other < port_count; other++)
                if (other != from)
                    enqueue(&ports[other], data, (size_t)size, start);
    }
}

/* Wait until a frame is due or a port that may send has one; serve it. */
static void turn(void) {
    struct pollfd polled[MAX_PORTS];
    int index[MAX_PORTS], count = 0;
    int64_t now = now_ns(), wake = now + INT64_C(100000000);
    for (int i = 0; i < port_count; i++) {
        deliver(&ports[i], now);
        if (ports[i].first && ports[i].first->due_ns < wake)
            wake = ports[i].first->due_ns;
        if (ports[i].uplink_free_ns <= now + BOOKED_NS) {
            polled[count] = (struct pollfd){.fd = ports[i].fd, .events = POLLIN};
            index[count++] = i;
        } else if (ports[i].uplink_free_ns - BOOKED_NS < wake) {
            wake = ports[i].uplink_free_ns - BOOKED_NS;
        }
    }
    int64_t wait = later(wake - now_ns(), 0);
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    if (ppoll(polled, (nfds_t)count, &timeout, NULL) <= 0)
        return;
    for (int i = 0; i < count; i++)
        if (polled[i].revents & POLLIN)
            receive(index[i]);
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: netlab_switch PORTS RATE_MBIT DELAY_US [BUFFER_KB]\n");
        return 2;
    }
    double rate_mbit = atof(argv[2]);
    port_count = atoi(argv[1]);
    if (port_count < 1 || port_count > MAX_PORTS) {
        fprintf(stderr, "netlab_switch: 1 to %d ports expected, found %s\n", MAX_PORTS, argv[1]);
        return 2;
    }
    ns_per_byte = rate_mbit > 0 ? 8e3 / rate_mbit : 0;
    delay_ns = (int64_t)(atof(argv[3]) * 1e3);
    buffer_bytes = (size_t)(argc == 5 ? atol(argv[4]) : 4096) * 1024;
    for (int i = 0; i < port_count; i++)
        open_port(i);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* default 50 us would add to every delay */
    printf("ready\n");
    fflush(stdout);
    while (!stopping)
        turn();
    fprintf(stderr, "frames %lu bytes %lu drops %lu\n", frames, bytes, drops);
    return 0;
}
