// cuDNN's backend: descriptors are kept with their attributes, a graph of operations is held against the
// patterns that cuDNN 8.9's fused engines take (after its documentation, NVIDIA's samples and the checks
// in the wheel), and compute.cc does the operations one after the other. What an engine would not take is
// refused by the status that cuDNN has for it, and is no error: callers do without.
#include "call.h"

#include <algorithm>
#include <memory>
#include <set>

#include <cudnn.h>

using compute::Convolution;
using compute::Data;
using compute::Filter;
using compute::Tensor;
using fake::Call;

namespace {

struct Graph;
struct Descriptor;
using Many = std::vector<Descriptor*>;

struct Descriptor {
  int kind;
  bool finalized = false;
  std::map<int, std::pair<int, std::string>> attributes = {};  // name: type and bytes
  std::shared_ptr<Graph> graph = nullptr;  // of a graph, heuristics, an engine, its configuration, a plan
  int engine = -1;

  bool has(int name) const { return attributes.count(name) != 0; }
  template <class T>
  std::vector<T> all(int name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    const std::string& bytes = found->second.second;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T first(int name, T otherwise = T()) const {
    const auto values = all<T>(name);
    return values.empty() ? otherwise : values[0];
  }
  Descriptor* part(int name) const { return first<Descriptor*>(name); }
};

// --- attributes -------------------------------------------------------------------------------------
int bytes_of(int type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
  }
}

// The names that a kind of descriptor has, and those without which it is not finished.
struct Kind {
  int first, last;
  std::vector<int> needed;
};
std::vector<int> between(int first, int last) {
  std::vector<int> names;
  for (int name = first; name <= last; ++name) names.push_back(name);
  return names;
}
const std::map<int, Kind>& kinds() {
  static const std::map<int, Kind> all = {
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, {0, 9, {0, 1}}},
      {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, {100, 106, between(100, 106)}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, {200, 203, {200, 201}}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {300, 302, {300}}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, {400, 405, {400, 401}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, {700, 705, between(700, 705)}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, {706, 711, between(706, 711)}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, {712, 717, between(712, 717)}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, {750, 758, {750, 751}}},
      {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, {770, 774, between(770, 774)}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {800, 802, {800, 801}}},
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR, {900, 913, {900, 901, 902, 903, 906}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, {1000, 1003, {1000, 1001, 1003}}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR, {1300, 1306, {1300, 1301}}},
      {CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, {1620, 1630, between(1620, 1630)}}};
  return all;
}
int type_of(int name) {
  switch (name) {
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE: return CUDNN_TYPE_HANDLE;
    case CUDNN_ATTR_POINTWISE_MODE: return CUDNN_TYPE_POINTWISE_MODE;
    case CUDNN_ATTR_CONVOLUTION_CONV_MODE: return CUDNN_TYPE_CONVOLUTION_MODE;
    case CUDNN_ATTR_OPERATION_GENSTATS_MODE: return CUDNN_TYPE_GENSTATS_MODE;
    case CUDNN_ATTR_ENGINEHEUR_MODE: return CUDNN_TYPE_HEUR_MODE;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return CUDNN_TYPE_NUMERICAL_NOTE;
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL: return CUDNN_TYPE_BOOLEAN;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE: return CUDNN_TYPE_VOID_PTR;
    case CUDNN_ATTR_POINTWISE_MATH_PREC:
    case CUDNN_ATTR_CONVOLUTION_COMP_TYPE:
    case CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC:
    case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC:
    case CUDNN_ATTR_TENSOR_DATA_TYPE: return CUDNN_TYPE_DATA_TYPE;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA: return CUDNN_TYPE_FLOAT;
  }
  const bool numbers = (name >= 100 && name < 200) || (name >= 900 && name <= 1000) ||
                       name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE ||
                       name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT ||
                       name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX;
  return numbers ? CUDNN_TYPE_INT64 : CUDNN_TYPE_BACKEND_DESCRIPTOR;
}

int bad(const Descriptor& d, const std::string& why, int status = CUDNN_STATUS_BAD_PARAM) {
  return fake::refuse(status, "cudnnBackend descriptor " + std::to_string(d.kind) + ": " + why);
}

// --- what descriptors say -----------------------------------------------------------------------------
std::int64_t uid(const Descriptor& tensor) {
  return tensor.first<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
}
bool is_virtual(const Descriptor& tensor) { return tensor.first<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL); }
void narrow(const std::vector<std::int64_t>& from, int* to) { std::copy(from.begin(), from.end(), to); }

Tensor tensor_of(const Descriptor& d) {
  const auto size = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  Tensor t{d.first<int>(CUDNN_ATTR_TENSOR_DATA_TYPE), int(size.size()), {}, {}};
  narrow(size, t.size);
  narrow(d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES), t.stride);
  return t;
}
Filter filter_of(const Descriptor& d) {
  const Tensor t = tensor_of(d);
  Filter f{t.type, CUDNN_TENSOR_NHWC, t.n, {}};
  std::copy_n(t.size, t.n, f.size);
  return f;
}
Convolution convolution_of(const Descriptor& d) {
  Convolution c{int(d.first<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)), {}, {}, {},
                d.first<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE), CUDNN_TENSOR_OP_MATH, 1,
                d.first<int>(CUDNN_ATTR_CONVOLUTION_CONV_MODE)};
  narrow(d.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), c.pad);
  narrow(d.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), c.stride);
  narrow(d.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS), c.dilation);
  return c;
}

bool convolves(const Descriptor& op) {
  return op.kind >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
         op.kind <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
}
// Convolutions have their attributes in one order: factors, how, filter, x, y.
struct Parts {
  Descriptor *how, *w, *x, *y;
  explicit Parts(const Descriptor& op) {
    const int first = kinds().at(op.kind).first;
    how = op.part(first + 2), w = op.part(first + 3), x = op.part(first + 4), y = op.part(first + 5);
  }
};
int mode_of(const Descriptor& pointwise) {
  return pointwise.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)->first<int>(CUDNN_ATTR_POINTWISE_MODE);
}

Many present(const Descriptor& op, std::initializer_list<int> names) {
  Many found;
  for (int name : names)
    if (op.has(name)) found.push_back(op.part(name));
  return found;
}
Many inputs(const Descriptor& op) {
  if (convolves(op)) {
    const Parts p(op);
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: return {p.x, p.w};
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: return {p.y, p.w};
      default: return {p.x, p.y};
    }
  }
  if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
    return present(op, {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                        CUDNN_ATTR_OPERATION_POINTWISE_BDESC});
  if (op.kind == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
    return {op.part(CUDNN_ATTR_OPERATION_GENSTATS_XDESC)};
  return present(op, {1621, 1622, 1623, 1624, 1625});
}
Many outputs(const Descriptor& op) {
  if (convolves(op)) {
    const Parts p(op);
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: return {p.y};
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: return {p.x};
      default: return {p.w};
    }
  }
  if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
    return present(op, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC});
  if (op.kind == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR) return present(op, {773, 774});
  return present(op, {1626, 1627, 1628, 1629, 1630});
}

std::string name_of(const Descriptor& op) {
  switch (op.kind) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: return "forward";
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: return "data";
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return "filter";
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR: return "sums";
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR: return "norm";
  }
  switch (mode_of(op)) {
    case CUDNN_POINTWISE_ADD: return "add";
    case CUDNN_POINTWISE_SUB: return "sub";
    case CUDNN_POINTWISE_MUL: return "mul";
    case CUDNN_POINTWISE_RELU_FWD: return "relu";
    case CUDNN_POINTWISE_RELU_BWD: return "drelu";
    default: return "other";
  }
}

// --- graphs -------------------------------------------------------------------------------------------
struct Graph {
  Many operations;  // each behind those that it reads from
  std::string pattern;
  std::map<std::int64_t, Descriptor*> tensors;
  std::set<std::int64_t> written;
  bool chained = true;  // every virtual tensor is read

  bool is_plain() const { return operations.size() == 1; }
};

// Null: the data do not flow.
std::shared_ptr<Graph> graph_of(Many operations, std::string* why) {
  auto graph = std::make_shared<Graph>();
  std::set<std::int64_t> read;
  for (Descriptor* op : operations) {
    for (Descriptor* t : inputs(*op)) read.insert(uid(*t)), graph->tensors[uid(*t)] = t;
    for (Descriptor* t : outputs(*op)) {
      if (!graph->written.insert(uid(*t)).second) return *why = "a tensor is written twice", nullptr;
      graph->tensors[uid(*t)] = t;
    }
  }
  for (Descriptor* op : operations)
    for (const Many& side : {inputs(*op), outputs(*op)})
      for (Descriptor* t : side) {
        const Tensor a = tensor_of(*t), b = tensor_of(*graph->tensors[uid(*t)]);
        if (std::memcmp(&a, &b, sizeof a)) return *why = "two tensors of one number", nullptr;
      }
  std::set<std::int64_t> ready;
  for (const auto& [number, t] : graph->tensors) {
    if (is_virtual(*t) && !graph->written.count(number)) return *why = "nothing writes a virtual tensor", nullptr;
    if (is_virtual(*t) && !read.count(number)) graph->chained = false;
    if (!graph->written.count(number)) ready.insert(number);
  }
  while (!operations.empty()) {
    const auto next = std::find_if(operations.begin(), operations.end(), [&](Descriptor* op) {
      const Many all = inputs(*op);
      return std::all_of(all.begin(), all.end(), [&](Descriptor* t) { return ready.count(uid(*t)); });
    });
    if (next == operations.end()) return *why = "operations in a circle", nullptr;
    graph->pattern += (graph->pattern.empty() ? "" : " ") + name_of(**next);
    for (Descriptor* t : outputs(**next)) ready.insert(uid(*t));
    graph->operations.push_back(*next);
    operations.erase(next);
  }
  return graph;
}

bool is_taken(const std::string& pattern) {
  static const std::set<std::string> patterns = {
      "forward", "data", "filter",
      "forward sums", "mul add relu forward", "mul add relu forward sums", "mul add relu filter",
      "data sub mul mul add drelu norm", "data sub mul mul add add drelu norm",
      "data add sub mul mul add drelu norm", "data add sub mul mul add add drelu norm"};
  return patterns.count(pattern) != 0;
}

// Has this GPU engines of the pattern?
bool has_engines(const Graph& graph) {
  int major, minor;
  fake::capability(&major, &minor);
  const int version = 10 * major + minor;
  if (!graph.chained || !is_taken(graph.pattern)) return false;
  return graph.is_plain() ? version >= 70 : version == 80 || version == 86 || version == 90;
}

// Do they take these tensors?
bool takes(const Graph& graph) {
  const bool back = graph.pattern.rfind("data", 0) == 0;
  for (const auto& [number, t] : graph.tensors) {
    const Tensor tensor = tensor_of(*t);
    const bool of_channels = tensor.size[0] * tensor.size[2] * tensor.size[3] == 1;
    if (tensor.size[1] % (graph.is_plain() ? 1 : 8)) return false;
    if (t->first<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) < 16) return false;
    if (!fake::is_packed(tensor, true)) return false;
    if (is_virtual(*t) || graph.is_plain()) continue;
    const bool half = !of_channels || (!back && !graph.written.count(number));
    if (tensor.type != (half ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT)) return false;
  }
  for (const Descriptor* op : graph.operations) {
    if (!convolves(*op)) continue;
    const Parts parts(*op);
    const Filter w = filter_of(*parts.w);
    const Convolution c = convolution_of(*parts.how);
    if (c.compute_type != CUDNN_DATA_FLOAT || (!graph.is_plain() && w.size[2] * w.size[3] >= 32)) return false;
    if (!graph.is_plain() && w.size[0] % 8) return false;
  }
  return true;
}

// Engines of a graph: a fast one that is not deterministic, one that takes nothing here, and one that does.
enum Engine { kFast, kNever, kSound, kEngines };

std::size_t workspace_bytes(const Graph& graph) {
  long channels = 0;
  for (const auto& [number, t] : graph.tensors) channels = std::max(channels, long(tensor_of(*t).size[1]));
  return graph.is_plain() ? 0 : 4 * 2 * 132 * channels;  // partial sums of each multiprocessor
}

// --- finishing a descriptor -----------------------------------------------------------------------------
int check_convolution(const Descriptor& op) {
  const Parts p(op);
  const Tensor x = tensor_of(*p.x), y = tensor_of(*p.y);
  const Filter w = filter_of(*p.w);
  const Convolution c = convolution_of(*p.how);
  if (c.n != 2 || c.mode != CUDNN_CROSS_CORRELATION) return bad(op, "a cross-correlation of maps expected");
  if (p.how->all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS) !=
      p.how->all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS))
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (x.size[0] != y.size[0] || x.size[1] != w.size[1] || y.size[1] != w.size[0])
    return bad(op, "batches or channels differ");
  for (int i = 0; i < 2; ++i)
    if (c.dilation[i] != 1 ||
        y.size[2 + i] != (x.size[2 + i] + 2 * c.pad[i] - w.size[2 + i]) / c.stride[i] + 1)
      return bad(op, "the output's sides are others by the formula");
  return 0;
}
int check_operation(const Descriptor& op) {
  if (convolves(op)) return check_convolution(op);
  if (outputs(op).empty()) return bad(op, "no output");
  const Tensor first = tensor_of(*inputs(op)[0]);
  for (const Many& side : {inputs(op), outputs(op)})
    for (const Descriptor* each : side) {
      const Tensor t = tensor_of(*each);
      const bool of_channels = t.size[0] * t.size[2] * t.size[3] == 1 && t.size[1] == first.size[1];
      const bool all = std::equal(t.size, t.size + 4, first.size);
      const Tensor maps = tensor_of(*inputs(op).back());
      if (!of_channels && !all && !std::equal(t.size, t.size + 4, maps.size)) return bad(op, "sizes differ");
    }
  return 0;
}

int finish(Descriptor& d) {
  for (int name : kinds().at(d.kind).needed)
    if (!d.has(name)) return bad(d, "attribute " + std::to_string(name) + " is missing");
  switch (d.kind) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return d.all<std::int64_t>(902).size() == 4 && d.all<std::int64_t>(903).size() == 4
                 ? 0 : bad(d, "four dimensions expected");
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR: return check_operation(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
      std::string why;
      d.graph = graph_of(d.all<Descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS), &why);
      return d.graph ? 0 : bad(d, why);
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      d.graph = d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
      return has_engines(*d.graph) ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      d.graph = d.part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)->graph;
      d.engine = int(d.first<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
      return has_engines(*d.graph) && d.engine < kEngines ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      d.graph = d.part(CUDNN_ATTR_ENGINECFG_ENGINE)->graph;
      d.engine = d.part(CUDNN_ATTR_ENGINECFG_ENGINE)->engine;
      return 0;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      d.graph = d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->graph;
      d.engine = d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine;
      return d.engine != kNever && takes(*d.graph) ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return d.all<std::int64_t>(1000).size() == d.all<void*>(1001).size()
                 ? 0 : bad(d, "as many numbers as pointers expected");
    default: return 0;
  }
}

// --- running a graph ------------------------------------------------------------------------------------
using Places = std::map<std::int64_t, void*>;

// Virtual tensors are floats in memory of the host.
class Run {
 public:
  Run(const Graph& graph, Places places) : places_(std::move(places)) {
    for (const auto& [number, t] : graph.tensors)
      if (is_virtual(*t)) {
        between_[number].resize(compute::elements(tensor_of(*t)));
        places_[number] = between_[number].data();
      }
    for (const Descriptor* op : graph.operations) compute(*op);
  }

 private:
  Data data(const Descriptor& t) {
    Tensor tensor = tensor_of(t);
    if (is_virtual(t)) tensor.type = CUDNN_DATA_FLOAT;
    return {tensor, places_.at(uid(t))};
  }
  float* floats(const Descriptor& op, int name) {
    return static_cast<float*>(places_.at(uid(*op.part(name))));
  }
  void compute(const Descriptor& op) {
    if (convolves(op)) return convolve(op);
    const Many from = inputs(op), to = outputs(op);
    if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      compute::pointwise(mode_of(op), data(*from[0]), from.size() > 1 ? data(*from[1]) : Data{}, data(*to[0]));
    else if (op.kind == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
      compute::sum_channels(data(*from[0]), floats(op, 773), floats(op, 774));
    else
      compute::sum_norm_back(data(*op.part(1624)), data(*op.part(1625)),
                             {floats(op, 1621), floats(op, 1622), floats(op, 1623), floats(op, 1626),
                              floats(op, 1627), floats(op, 1628), floats(op, 1629), floats(op, 1630)});
  }
  void convolve(const Descriptor& op) {
    const Parts p(op);
    const Filter w = filter_of(*p.w);
    const Convolution c = convolution_of(*p.how);
    void* weights = places_.at(uid(*p.w));
    if (op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
      compute::convolve(data(*p.x), w, weights, c, {1, 0}, data(*p.y));
    else if (op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
      compute::convolve_back_to_data(w, weights, data(*p.y), c, {1, 0}, data(*p.x));
    else
      compute::convolve_back_to_filter(data(*p.x), data(*p.y), c, {1, 0}, w, weights);
  }
  Places places_;
  std::map<std::int64_t, std::vector<float>> between_;
};

Descriptor& as_new(cudnnBackendDescriptor_t d) { return *static_cast<Descriptor*>(d); }
cudnnStatus_t status(int code) { return static_cast<cudnnStatus_t>(code); }

void list(const Descriptor& d, int name, std::vector<std::int64_t>& numbers, std::vector<int>& notes,
          std::vector<int>& engines) {
  const bool back = d.graph && d.graph->pattern.rfind("data", 0) == 0;
  switch (name) {
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: numbers = {std::int64_t(workspace_bytes(*d.graph))}; break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: numbers = {has_engines(*d.graph) ? kEngines : 0}; break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
      if (d.engine == kFast) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      break;
    case CUDNN_ATTR_ENGINECFG_ENGINE: engines = {d.engine}; break;
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      engines = {kSound};
      if (d.first<int>(CUDNN_ATTR_ENGINEHEUR_MODE) != CUDNN_HEUR_MODE_FALLBACK)
        engines = back ? std::vector<int>{kFast} : std::vector<int>{kFast, kNever, kSound};
      break;
  }
}

}  // namespace

FAKE cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                                cudnnBackendDescriptor_t* made) {
  if (!kinds().count(kind)) return CUDNN_STATUS_NOT_SUPPORTED;
  *made = new Descriptor{kind};
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Descriptor*>(d);
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t d) {
  as_new(d) = Descriptor{as_new(d).kind};
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                            cudnnBackendAttributeName_t name,
                                            cudnnBackendAttributeType_t type, int64_t count,
                                            const void* array) {
  Descriptor& d = as_new(descriptor);
  const Kind& kind = kinds().at(d.kind);
  if (d.finalized) return status(bad(d, "set after it was finalized", CUDNN_STATUS_NOT_INITIALIZED));
  if (name < kind.first || name > kind.last) return status(bad(d, "has no attribute " + std::to_string(name)));
  if (type != type_of(name) || count < 1 || array == nullptr)
    return status(bad(d, "attribute " + std::to_string(name) + " is of another type or has no value"));
  const std::string bytes(static_cast<const char*>(array), count * bytes_of(type));
  d.attributes[name] = {type, bytes};
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  for (const Descriptor* part : d.all<Descriptor*>(name))
    if (part == nullptr || !part->finalized) return status(bad(d, "takes parts that are finalized"));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& d = as_new(descriptor);
  const int code = finish(d);
  d.finalized = code == 0;
  if (code) fake::count("backend descriptors refused");
  return status(code);
}
FAKE cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                            cudnnBackendAttributeName_t name,
                                            cudnnBackendAttributeType_t type, int64_t most,
                                            int64_t* count, void* array) {
  const Descriptor& d = as_new(descriptor);
  if (!d.finalized) return status(bad(d, "asked before it was finalized", CUDNN_STATUS_NOT_INITIALIZED));
  if (type != type_of(name)) return status(bad(d, "attribute " + std::to_string(name) + " is of another type"));
  std::vector<std::int64_t> numbers;
  std::vector<int> notes, engines;
  list(d, name, numbers, notes, engines);
  *count = int64_t(numbers.size() + notes.size() + engines.size());
  const int64_t given = std::min(most, *count);
  if (array == nullptr) return CUDNN_STATUS_SUCCESS;
  // Descriptors are the caller's, made beforehand.
  for (int64_t i = 0; i < given; ++i) {
    if (!numbers.empty()) static_cast<std::int64_t*>(array)[i] = numbers[i];
    else if (!notes.empty()) static_cast<int*>(array)[i] = notes[i];
    else {
      Descriptor& part = as_new(static_cast<void**>(array)[i]);
      part.graph = d.graph, part.engine = engines[i], part.finalized = true;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                                       cudnnBackendDescriptor_t pack_descriptor) {
  const Descriptor &plan = as_new(plan_descriptor), &pack = as_new(pack_descriptor);
  Call call("cudnnBackendExecute", handle);
  if (!plan.finalized || !pack.finalized) call.wrong("a plan or a pack that is not finalized");
  const auto graph = plan.graph;
  const auto numbers = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  Places places;
  for (std::size_t i = 0; i < numbers.size(); ++i) places[numbers[i]] = pointers[i];
  for (const auto& [number, t] : graph->tensors) {
    if (is_virtual(*t)) continue;
    const Data data{tensor_of(*t), places[number]};
    if (data.place == nullptr) return status(fake::refuse(CUDNN_STATUS_BAD_PARAM,
                                             "cudnnBackendExecute: the pack has no pointer of a tensor"));
    call.aligned("a tensor", data.place, t->first<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
    call.tensor("a tensor", data);
    std::size_t bytes = fake::tensor_bytes(data.tensor);
    for (const Descriptor* op : graph->operations)
      if (op->kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
          op->kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR) {
        const Parts parts(*op);
        if (number == uid(*parts.x))
          bytes = fake::met_bytes(data.tensor, filter_of(*parts.w), convolution_of(*parts.how));
      }
    call.moves("cudnnBackendExecute", bytes);
  }
  call.space("workspace", pack.first<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE), workspace_bytes(*graph),
             workspace_bytes(*graph));
  if (plan.engine == kFast) call.counts("calls that are not deterministic");
  return status(call.done(graph->pattern, [graph, places] { Run(*graph, places); }));
}
