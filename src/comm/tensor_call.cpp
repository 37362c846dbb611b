#include "comm/tensor_call.h"

#include <numeric>
#include <optional>

#include "base/error.h"

namespace trireme::comm {
namespace {

std::optional<DType> arithmetic_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kByte:
      return DType::u8;
    default:
      return std::nullopt;
  }
}

void check_tensor(const at::Tensor& tensor, Kind kind) {
  const auto refuse = [&](const std::string& why) { throw_input("{}: {}", name_of(kind), why); };
  if (!tensor.defined()) refuse("the tensor is undefined");
  if (!tensor.is_contiguous()) refuse("the tensor is not contiguous; pass tensor.contiguous()");
}

void check_same_dtype(Kind kind, const at::Tensor& one, const at::Tensor& other) {
  if (one.scalar_type() == other.scalar_type()) return;
  throw_input("{}: the tensors of a call have one dtype; found {} and {}", name_of(kind),
              c10::toString(one.scalar_type()), c10::toString(other.scalar_type()));
}

void check_same_device(Kind kind, const at::Tensor& one, const at::Tensor& other) {
  if (one.device() == other.device()) return;
  throw_input("{}: the tensors of a call are on one device; found {} and {}", name_of(kind), one.device().str(),
              other.device().str());
}

// Sets the dtype; returns how many of the call's elements one of the tensor's is: a dtype that the core does not know
// travels as bytes.
int64_t set_dtype(Call& call, const at::Tensor& tensor) {
  const auto known = arithmetic_dtype(tensor.scalar_type());
  if (!known && is_reduction(call.kind)) {
    throw_input("{}: cannot reduce {}; float, double, bfloat16, half, int64, int32 and uint8 can be",
                name_of(call.kind), c10::toString(tensor.scalar_type()));
  }
  call.dtype = known.value_or(DType::u8);
  call.shape = tensor.sizes().vec();
  call.on_device = !tensor.is_cpu();
  return known ? 1 : static_cast<int64_t>(tensor.element_size());
}

void keep(Call& call, at::TensorList first, at::TensorList second = {}) {
  std::vector<at::Tensor> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  call.keep_alive = std::make_shared<std::vector<at::Tensor>>(std::move(all));
}

void check_lists(Kind kind, at::TensorList outputs, at::TensorList inputs, bool casts = false) {
  if (outputs.size() != inputs.size() || inputs.empty()) {
    throw_input("{}: expected as many outputs as inputs, at least one; found {} and {}", name_of(kind), outputs.size(),
                inputs.size());
  }
  for (size_t t = 0; t < inputs.size(); ++t) {
    check_tensor(outputs[t], kind);
    check_tensor(inputs[t], kind);
    check_same_device(kind, inputs[0], inputs[t]);
    check_same_device(kind, inputs[0], outputs[t]);
    check_same_dtype(kind, inputs[0], inputs[t]);
    check_same_dtype(kind, casts ? outputs[0] : inputs[0], outputs[t]);
  }
}

// Elements of the block of one rank in a call of equal blocks.
int64_t block_of(Kind kind, const at::Tensor& output, const at::Tensor& input, int64_t ranks) {
  const int64_t in = input.defined() ? input.numel() : output.numel() * ranks;
  const int64_t out = output.defined() ? output.numel() : in * ranks;
  if (kind == Kind::all_to_all) {
    if (in != out || in % ranks != 0) {
      throw_input(
          "all_to_all: input and output must have the same number of elements, a multiple of {} ranks; they have {} "
          "and {}",
          ranks, in, out);
    }
    return in / ranks;
  }
  if (joins_output(kind)) {
    if (out != in * ranks) {
      throw_input("{}: {} elements on each of {} ranks make {}; the output has {}", name_of(kind), in, ranks,
                  in * ranks, out);
    }
    return in;
  }
  if (in != out * ranks) {
    throw_input("{}: {} elements for each of {} ranks make {}; the input has {}", name_of(kind), out, ranks,
                out * ranks, in);
  }
  return out;
}

int64_t row_elements(const at::Tensor& tensor, Kind kind) {
  if (tensor.dim() == 0) throw_input("{}: a tensor without dimensions has no rows", name_of(kind));
  return c10::multiply_integers(tensor.sizes().slice(1));
}

void check_rows(Kind kind, const char* side, const at::Tensor& tensor, int64_t rows) {
  if (tensor.dim() != 0 && tensor.size(0) == rows) return;
  throw_input("{}: the {} is {}; the list of rows makes it {} rows", name_of(kind), side, c10::str(tensor.sizes()),
              rows);
}

}  // namespace

Call in_place_call(Kind kind, const at::Tensor& tensor) {
  check_tensor(tensor, kind);
  Call call;
  call.kind = kind;
  call.count = tensor.numel() * set_dtype(call, tensor);
  call.output = tensor.data_ptr();
  call.keep_alive = std::make_shared<at::Tensor>(tensor);
  return call;
}

Call in_place_call(Kind kind, at::TensorList tensors) {
  if (tensors.empty()) throw_input("{}: a list of tensors without tensors", name_of(kind));
  Call call;
  call.kind = kind;
  const auto extents = std::make_shared<Extents>();
  const int64_t scale = set_dtype(call, tensors[0]);
  for (const at::Tensor& tensor : tensors) {
    check_tensor(tensor, kind);
    check_same_device(kind, tensors[0], tensor);
    check_same_dtype(kind, tensors[0], tensor);
    extents->inputs.push_back(tensor.data_ptr());
    extents->outputs.push_back(tensor.data_ptr());
    extents->counts.push_back(tensor.numel() * scale);
  }
  call.extents = extents;
  keep(call, tensors);
  return call;
}

Call pair_call(Kind kind, const at::Tensor& output, const at::Tensor& input) {
  check_lists(kind, output, input);
  if (output.numel() != input.numel()) {
    throw_input("{}: the output has {} elements, the input {}", name_of(kind), output.numel(), input.numel());
  }
  Call call;
  call.kind = kind;
  call.count = input.numel() * set_dtype(call, input);
  call.input = input.data_ptr();
  call.output = output.data_ptr();
  keep(call, output, input);
  return call;
}

Call blocks_call(Kind kind, const at::Tensor& output, const at::Tensor& input, int64_t ranks, bool is_root) {
  const bool input_only = kind == Kind::gather && !is_root;
  const bool output_only = kind == Kind::scatter && !is_root;
  if (!input_only) check_tensor(output, kind);
  if (!output_only) check_tensor(input, kind);
  if (!input_only && !output_only) {
    check_same_device(kind, input, output);
    check_same_dtype(kind, input, output);
  }
  Call call;
  call.kind = kind;
  const at::Tensor none;
  const at::Tensor& narrow = splits_input(kind) && kind != Kind::all_to_all ? output : input;
  call.count = block_of(kind, input_only ? none : output, output_only ? none : input, ranks) * set_dtype(call, narrow);
  call.input = output_only ? nullptr : input.data_ptr();
  call.output = input_only ? nullptr : output.data_ptr();
  call.keep_alive = std::make_shared<std::array<at::Tensor, 2>>(std::array<at::Tensor, 2>{output, input});
  return call;
}

Call blocks_call(Kind kind, at::TensorList outputs, at::TensorList inputs, int64_t ranks) {
  check_lists(kind, outputs, inputs);
  Call call;
  call.kind = kind;
  const auto extents = std::make_shared<Extents>();
  const int64_t scale = set_dtype(call, splits_input(kind) ? outputs[0] : inputs[0]);
  for (size_t t = 0; t < inputs.size(); ++t) {
    extents->inputs.push_back(inputs[t].data_ptr());
    extents->outputs.push_back(outputs[t].data_ptr());
    extents->counts.push_back(block_of(kind, outputs[t], inputs[t], ranks) * scale);
  }
  call.extents = extents;
  keep(call, outputs, inputs);
  return call;
}

Call rows_call(Kind kind, at::TensorList outputs, at::TensorList inputs, at::IntArrayRef rows, int64_t rank,
               int64_t ranks) {
  const bool casts = kind == Kind::all_gather && !inputs.empty() && !outputs.empty() &&
                     inputs[0].scalar_type() == at::kFloat &&
                     (outputs[0].scalar_type() == at::kBFloat16 || outputs[0].scalar_type() == at::kHalf);
  check_lists(kind, outputs, inputs, casts);
  const size_t expected = inputs.size() * static_cast<size_t>(ranks);
  if (rows.size() != expected) {
    throw_input("{}: expected the rows of each of {} ranks for each of {} tensors, {} numbers; found {}", name_of(kind),
                ranks, inputs.size(), expected, rows.size());
  }
  Call call;
  call.kind = kind;
  const auto extents = std::make_shared<Extents>();
  const bool joins = joins_output(kind);
  const int64_t scale = set_dtype(call, joins ? outputs[0] : inputs[0]);
  call.input_dtype = casts ? DType::f32 : call.dtype;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const at::IntArrayRef mine = rows.slice(t * static_cast<size_t>(ranks), static_cast<size_t>(ranks));
    const at::Tensor& wide = joins ? outputs[t] : inputs[t];
    const at::Tensor& narrow = joins ? inputs[t] : outputs[t];
    check_rows(kind, joins ? "output" : "input", wide, std::accumulate(mine.begin(), mine.end(), int64_t{0}));
    check_rows(kind, joins ? "input" : "output", narrow, mine[static_cast<size_t>(rank)]);
    const int64_t row = row_elements(wide, kind);
    if (row != row_elements(narrow, kind)) {
      throw_input("{}: rows of {} and of {} differ in size", name_of(kind), c10::str(inputs[t].sizes()),
                  c10::str(outputs[t].sizes()));
    }
    extents->inputs.push_back(inputs[t].data_ptr());
    extents->outputs.push_back(outputs[t].data_ptr());
    for (const int64_t count : mine) extents->counts.push_back(count * row * scale);
  }
  call.extents = extents;
  keep(call, outputs, inputs);
  return call;
}

Call exchange_call(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef output_rows,
                   at::IntArrayRef input_rows, int64_t ranks) {
  constexpr Kind kind = Kind::all_to_all;
  check_lists(kind, output, input);
  const auto side = [&](const char* name, const at::Tensor& tensor, at::IntArrayRef rows, int64_t scale) {
    if (rows.size() != static_cast<size_t>(ranks)) {
      throw_input("all_to_all: expected the {} rows of each of {} ranks, found {} numbers", name, ranks, rows.size());
    }
    check_rows(kind, name, tensor, std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    std::vector<int64_t> counts;
    for (const int64_t count : rows) counts.push_back(count * row_elements(tensor, kind) * scale);
    return counts;
  };
  Call call;
  call.kind = kind;
  const int64_t scale = set_dtype(call, input);
  call.shape.clear();  // the number of rows is each rank's own
  const auto extents = std::make_shared<Extents>();
  extents->inputs.push_back(input.data_ptr());
  extents->outputs.push_back(output.data_ptr());
  extents->counts = side("input", input, input_rows, scale);
  extents->output_counts = side("output", output, output_rows, scale);
  call.extents = extents;
  keep(call, output, input);
  return call;
}

}  // namespace trireme::comm
