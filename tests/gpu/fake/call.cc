// The checks and counts that calls of cuDNN and cuBLAS have in common.
#include "call.h"

#include <cudnn.h>
#include <unistd.h>

namespace fake {

Holding::Holding(const void* handle) : handle_(*static_cast<Handle*>(const_cast<void*>(handle))) {
  const long self = gettid();
  long holder = 0;
  first_ = __atomic_compare_exchange_n(&handle_.thread, &holder, self, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
  alone_ = first_ || holder == self;
  if (!alone_) refuse(0, "a handle is used by two threads at a time");
}

Holding::~Holding() {
  if (first_) __atomic_store_n(&handle_.thread, 0, __ATOMIC_SEQ_CST);
}

using compute::Blend;
using compute::Data;
using compute::Tensor;

const char* type_name(int type) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return "float32";
    case CUDNN_DATA_DOUBLE: return "float64";
    case CUDNN_DATA_HALF: return "float16";
    default: return "other";
  }
}

std::size_t extent_bytes(const Tensor& t) {
  std::size_t last = 0;
  for (int i = 0; i < t.n; ++i) last += std::size_t(t.size[i] - 1) * t.stride[i];
  return (last + 1) * compute::type_bytes(t.type);
}

std::size_t tensor_bytes(const Tensor& t) { return compute::elements(t) * compute::type_bytes(t.type); }

std::size_t met_bytes(const Tensor& x, const compute::Filter& w, const compute::Convolution& c) {
  std::size_t bytes = tensor_bytes(x);
  for (int i = 0; i < c.n; ++i)
    if (w.size[2 + i] < c.stride[i]) bytes = bytes * w.size[2 + i] / c.stride[i];
  return bytes;
}

bool is_channels_last(const Tensor& t) {
  return t.n == 4 && t.stride[1] == 1 && t.size[1] > 1 && t.size[2] * t.size[3] > 1;
}

const char* layout(const Tensor& t) { return is_channels_last(t) ? "NHWC" : "NCHW"; }

bool is_packed(const Tensor& t, bool channels_last) {
  long stride = 1;
  auto fits = [&](int axis) {
    const bool is = t.size[axis] == 1 || t.stride[axis] == stride;
    stride *= t.size[axis];
    return is;
  };
  if (channels_last && !fits(1)) return false;
  for (int axis = t.n - 1; axis >= 0; --axis)
    if (!(channels_last && axis == 1) && !fits(axis)) return false;
  return true;
}

std::string shape(const int* size, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += (i ? "x" : "") + std::to_string(size[i]);
  return text;
}

Call::Call(const char* name, const void* handle)
    : name_(name), holding_(handle), handle_(*static_cast<const Handle*>(handle)) {
  if (!holding_.alone()) status_ = CUDNN_STATUS_EXECUTION_FAILED;
  if (current_device() != handle_.device)
    wrong("a handle of device " + std::to_string(handle_.device) + " in a thread whose device is " +
              std::to_string(current_device()),
          CUDNN_STATUS_EXECUTION_FAILED);
  if (handle_.stream && device_of(handle_.stream) != handle_.device)
    wrong("a handle of device " + std::to_string(handle_.device) + " on a stream of device " +
              std::to_string(device_of(handle_.stream)),
          CUDNN_STATUS_EXECUTION_FAILED);
}

Call& Call::wrong(const std::string& why, int status) {
  status_ = status;
  refuse(0, name_ + ": " + why);
  return *this;
}

Call& Call::memory(const char* what, const void* data, std::size_t bytes, const std::string& of) {
  if (bytes == 0) return *this;
  work_.memory.emplace_back(data, bytes);
  if (on_device(data, bytes)) return *this;
  return wrong(std::string(what) + " (" + of + ", " + std::to_string(bytes) + " bytes) " +
               (in_device_range(data) ? "passes the end of its allocation" : "is not on the device"));
}

Call& Call::aligned(const char* what, const void* data, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(data) % bytes == 0) return *this;
  return wrong(std::string(what) + " is not aligned to " + std::to_string(bytes) + " bytes");
}

Call& Call::space(const char* what, const void* data, std::size_t bytes, std::size_t needed) {
  if (bytes < needed)
    return wrong(std::string(what) + " of " + std::to_string(bytes) + " bytes, " +
                 std::to_string(needed) + " expected");
  memory(what, data, bytes, "bytes");
  return needed ? aligned(what, data, 16) : *this;
}

Call& Call::tensor(const char* what, const Data& data) {
  const Tensor& t = data.tensor;
  if (t.n == 0) return wrong(std::string(what) + ": its descriptor was never set");
  aligned(what, data.place, compute::type_bytes(t.type));
  return memory(what, data.place, extent_bytes(t), shape(t.size, t.n) + " " + type_name(t.type));
}

Call& Call::reads(const char* what, const Data& data) {
  return tensor(what, data).moves(name_, tensor_bytes(data.tensor));
}

Call& Call::writes(const char* what, const Data& data, Blend blend) {
  if (blend.beta != 0) moves(name_, tensor_bytes(data.tensor));
  return reads(what, data);
}

Call& Call::moves(const std::string& kind, std::size_t bytes) {
  work_.counts["tensor bytes"] += long(bytes);
  work_.counts["tensor bytes " + kind] += long(bytes);
  return *this;
}

Call& Call::counts(const std::string& name) {
  work_.counts[name] += 1;
  return *this;
}

Call& Call::not_computed() { return computes() ? wrong("not computed here") : *this; }

Call& Call::same(const char* what, int a, int b) {
  if (a != b) wrong(std::string(what) + " differ: " + std::to_string(a) + ", " + std::to_string(b));
  return *this;
}

Call& Call::same_type(const char* what, int a, int b) {
  if (a != b) wrong(std::string(what) + " differ: " + type_name(a) + ", " + type_name(b));
  return *this;
}

int Call::done(const std::string& kind, std::function<void()> compute, std::function<void()> check,
               std::function<void()> leave) {
  if (status_) return status_;
  if (fails(name_)) return CUDNN_STATUS_EXECUTION_FAILED;
  counts(name_ + " " + kind);
  const bool is_cudnn = name_.rfind("cudnn", 0) == 0;
  count_call(handle_.stream, is_cudnn ? "cudnn calls" : "cublas calls");
  if (!is_cudnn) count_call(handle_.stream, "launches");
  const bool does = computes();
  work_.run = [compute, check, leave, does] {
    if (check) check();
    if (compute && does) compute();
    if (leave) leave();
  };
  return enqueue(handle_.stream, std::move(work_)) ? CUDNN_STATUS_EXECUTION_FAILED : 0;
}

}  // namespace fake
