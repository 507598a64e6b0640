// A call of cuDNN or cuBLAS under test: collects what is wrong with it, counts it and what it moves, and
// then asks the device for it.
#pragma once
#include "compute.h"
#include "fake.h"

#include <cstring>
#include <string>

namespace fake {

struct Handle {
  int device;
  void* stream;
  long thread;  // that is within a call of it; 0: none
};

// Holds a handle for a call. cuDNN forbids two threads within calls of one handle.
class Holding {
 public:
  explicit Holding(const void* handle);
  ~Holding();
  bool alone() const { return alone_; }

 private:
  Handle& handle_;
  bool alone_, first_;
};

const char* type_name(int type);
bool is_channels_last(const compute::Tensor& t);
bool is_packed(const compute::Tensor& t, bool channels_last);
const char* layout(const compute::Tensor& t);
std::string shape(const int* size, int n);
std::size_t extent_bytes(const compute::Tensor& t);  // from its first to its last element
std::size_t tensor_bytes(const compute::Tensor& t);  // of its elements
// Of the input what a filter meets: a kernel smaller than its stride leaves pixels out, whole rows of
// channels in NHWC.
std::size_t met_bytes(const compute::Tensor& x, const compute::Filter& w, const compute::Convolution& c);

class Call {
 public:
  Call(const char* name, const void* handle);

  // Tensors that the call reads or writes whole: their bytes are counted, once each, as cuDNN's kernels
  // that read a tensor once have it.
  Call& reads(const char* what, const compute::Data& data);
  Call& writes(const char* what, const compute::Data& data, compute::Blend blend = {1, 0});
  // What else has to be on the device: parameters, statistics, workspaces.
  Call& tensor(const char* what, const compute::Data& data);
  Call& memory(const char* what, const void* data, std::size_t bytes, const std::string& of);
  Call& space(const char* what, const void* data, std::size_t bytes, std::size_t needed);
  Call& aligned(const char* what, const void* data, std::size_t bytes);

  Call& same(const char* what, int a, int b);
  Call& same_type(const char* what, int a, int b);
  Call& wrong(const std::string& why, int status = 3);  // CUDNN_STATUS_BAD_PARAM
  Call& moves(const std::string& kind, std::size_t bytes);
  Call& counts(const std::string& name);
  Call& not_computed();  // wrong, unless FAKECUDA_COMPUTE=0
  // Asks the device for `compute`, if there is one and nothing was wrong; for `check` before it and for `leave` after it
  // with FAKECUDA_COMPUTE=0 too. Returns the cudnnStatus_t.
  int done(const std::string& kind, std::function<void()> compute = nullptr,
           std::function<void()> check = nullptr, std::function<void()> leave = nullptr);

 private:
  std::string name_;
  Holding holding_;
  const Handle& handle_;
  Work work_;
  int status_ = 0;
};

// --- algorithms of a convolution (algorithms.cc) ------------------------------------------------------
enum class Direction { kForward, kBackwardData, kBackwardFilter };

struct Convolving {
  Direction direction;
  compute::Tensor x;
  compute::Filter w;
  compute::Convolution c;
  compute::Tensor y;
};
struct Algorithm {
  int number;
  bool tensor_cores, deterministic, supported;
  std::size_t workspace_bytes;
};
std::vector<Algorithm> algorithms(const Convolving& what);  // the best first
const Algorithm* find(const std::vector<Algorithm>& among, int number);
bool is_half_on_tensor_cores(const Convolving& what, const Algorithm& algorithm);

}  // namespace fake
