// Devices as tests and benchmarks use them: memory, copies and single kernels. Models go through plans.
#include "thresher/run/device.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/ops/pointwise_chain.h"
#include "thresher/run/cpu_device.h"
#include "thresher/run/device_library.h"

namespace thresher::bindings {
namespace {

// nanobind keeps no device alive for what came out of it, so each holds one, released last.
struct Buffer {
  std::shared_ptr<Device> device;
  DeviceMemory memory;
};

struct Event {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceEvent> event;
};

struct Stream {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceStream> stream;
};

// Runs without the interpreter's lock.
template <class Function>
void Do(Function&& function) {
  Status status;
  {
    const GilRelease release;
    status = function();
  }
  Check(status);
}

[[noreturn]] void Refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// Bytes [offset, offset + bytes) of a buffer of this stream's device.
std::byte* Part(const Stream& stream, const Buffer& buffer, int64_t offset, int64_t bytes, const char* name) {
  if (buffer.device != stream.device) Refuse(std::string(name) + ": wanted a buffer of the stream's own device");
  if (offset < 0 || bytes < 0 || offset > static_cast<int64_t>(buffer.memory.size()) ||
      bytes > static_cast<int64_t>(buffer.memory.size()) - offset) {
    Refuse(std::string(name) + ": wanted " + std::to_string(bytes) + " bytes from " + std::to_string(offset) +
           ", found a buffer of " + std::to_string(buffer.memory.size()));
  }
  return buffer.memory.data() + offset;
}

// As many elements as `rows` rows of `cols` take that lie `stride` apart.
int64_t Extent(int64_t rows, int64_t cols, int64_t stride, const char* name) {
  if (rows < 0 || cols < 0) Refuse(std::string(name) + ": wanted sizes of at least 0");
  if (stride < cols) Refuse(std::string(name) + ": wanted rows at least " + std::to_string(cols) + " apart");
  return rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
}

float* Floats(const Stream& stream, const Buffer& buffer, int64_t count, const char* name) {
  return reinterpret_cast<float*>(Part(stream, buffer, 0, count * 4, name));
}

float* Floats(const Stream& stream, const Buffer* buffer, int64_t count, const char* name) {
  return buffer == nullptr ? nullptr : Floats(stream, *buffer, count, name);
}

void CheckContiguous(const View& view) {
  if (!view.contiguous()) Refuse("array: wanted a row-major one without holes; numpy.ascontiguousarray makes it so");
}

// Operands of a chain: buffer, strides and offset in elements.
using ChainOperand = std::tuple<const Buffer*, std::vector<int64_t>, int64_t>;

View OperandView(const Stream& stream, const ChainOperand& operand, const Dims& shape) {
  const auto& [buffer, strides, offset] = operand;
  if (buffer == nullptr) Refuse("operand: wanted a buffer, found None");
  if (strides.size() != shape.size()) Refuse("operand: wanted a stride for each dimension");
  View view = MakeView(nullptr, DType::kF32, shape);
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (strides[d] < 0) Refuse("operand: wanted strides of at least 0");
    view.strides[d] = strides[d];
    if (shape[d] > 0) last += (shape[d] - 1) * strides[d];
  }
  const int64_t count = NumElements(shape) == 0 ? 0 : last + 1;
  view.data = Part(stream, *buffer, offset * 4, count * 4, "operand");
  return view;
}

void Pointwise(Stream& stream, const std::string& program, const std::vector<ChainOperand>& operands,
               const std::vector<int64_t>& shape, const Buffer& out) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) Refuse("shape: wanted at most 8 dimensions");
  for (const int64_t size : shape) {
    if (size < 0) Refuse("shape: wanted sizes of at least 0");
  }
  OperandType type;
  type.shape = shape;
  type.present = true;
  const std::vector<OperandType> types(operands.size(), type);
  const kernels::Chain chain = Unwrap(ParseChain(program, types));
  std::vector<View> views;
  views.reserve(operands.size());
  for (const ChainOperand& operand : operands) views.push_back(OperandView(stream, operand, shape));
  const View to = MakeView(Floats(stream, out, NumElements(shape), "out"), DType::kF32, shape);
  Do([&] { return stream.stream->RunChain(chain, views, to); });
}

void Norm(Stream& stream, const std::string& kind, const Buffer& x, const Buffer& out, int64_t rows, int64_t cols,
          const Buffer* weight, const Buffer* bias, const Buffer* residual, const Buffer* sum, float eps,
          std::optional<int64_t> row_stride) {
  if (kind != "layer_norm" && kind != "rms_norm") Refuse("kind: wanted layer_norm or rms_norm, found " + kind);
  const int64_t stride = row_stride.value_or(cols);
  const int64_t extent = Extent(rows, cols, stride, "norm");
  thresher_norm norm{};
  norm.x = Floats(stream, x, extent, "x");
  norm.residual = Floats(stream, residual, extent, "residual");
  norm.weight = Floats(stream, weight, cols, "weight");
  norm.bias = Floats(stream, bias, cols, "bias");
  norm.out = Floats(stream, out, extent, "out");
  norm.sum = Floats(stream, sum, extent, "sum");
  norm.x_stride = norm.residual_stride = norm.out_stride = norm.sum_stride = stride;
  norm.rows = rows;
  norm.cols = cols;
  norm.eps = eps;
  norm.rms = kind == "rms_norm";
  if (norm.rms != 0 && bias != nullptr) Refuse("bias: wanted none for rms_norm");
  if (sum != nullptr && residual == nullptr) Refuse("sum: wanted a residual with it");
  Do([&] { return stream.stream->Norm(norm); });
}

void Softmax(Stream& stream, const Buffer& x, const Buffer& out, int64_t outer, int64_t dim, int64_t inner, bool log) {
  if (outer < 0 || dim < 0 || inner < 0) Refuse("softmax: wanted sizes of at least 0");
  const int64_t count = outer * dim * inner;
  const thresher_softmax args{Floats(stream, x, count, "x"), Floats(stream, out, count, "out"), outer, dim, inner, log};
  Do([&] { return stream.stream->Softmax(args); });
}

void Gemm(Stream& stream, const Buffer& a, const Buffer& b, const Buffer& c, int64_t m, int64_t n, int64_t k,
          const Buffer* bias, const std::string& type, bool transpose_b, bool allow_tf32, std::optional<int64_t> lda,
          std::optional<int64_t> ldb, std::optional<int64_t> ldc) {
  if (type != "f32" && type != "bf16") Refuse("type: wanted f32 or bf16, found " + type);
  const int64_t element = type == "bf16" ? 2 : 4;
  const int64_t b_rows = transpose_b ? n : k, b_cols = transpose_b ? k : n;
  thresher_gemm gemm{};
  gemm.m = m, gemm.n = n, gemm.k = k;
  gemm.lda = lda.value_or(k), gemm.ldb = ldb.value_or(b_cols), gemm.ldc = ldc.value_or(n);
  gemm.a = Part(stream, a, 0, Extent(m, k, gemm.lda, "a") * element, "a");
  gemm.b = Part(stream, b, 0, Extent(b_rows, b_cols, gemm.ldb, "b") * element, "b");
  gemm.c = Floats(stream, c, Extent(m, n, gemm.ldc, "c"), "c");
  gemm.bias = Floats(stream, bias, n, "bias");
  gemm.type = type == "bf16" ? THRESHER_GEMM_BF16 : THRESHER_GEMM_F32;
  gemm.transpose_b = transpose_b;
  gemm.allow_tf32 = allow_tf32;
  Do([&] { return stream.stream->Gemm(gemm); });
}

nb::dict ToPython(const DeviceInfo& info) {
  nb::dict entry;
  entry["kind"] = info.kind;
  entry["index"] = info.index;
  entry["name"] = info.name;
  entry["memory_bytes"] = info.memory_bytes;
  entry["multiprocessors"] = info.multiprocessors;
  entry["compute_capability"] = info.compute_capability;
  entry["driver_version"] = info.driver_version;
  entry["runtime_version"] = info.runtime_version;
  return entry;
}

// What a library knows of the machine. Raises where it has no device, too.
nb::dict LibraryDevices(const std::string& path) {
  const std::shared_ptr<DeviceLibrary> library = Unwrap(DeviceLibrary::Open(path));
  const int count = Unwrap(library->Count());
  nb::list devices;
  for (int i = 0; i < count; ++i) devices.append(ToPython(Unwrap(library->Info(i))));
  nb::dict entry;
  entry["kind"] = std::string(library->api().kind);
  entry["architectures"] = std::string(library->api().architectures);
  entry["devices"] = devices;
  return entry;
}

std::shared_ptr<Device> OpenDevice(const std::optional<std::string>& library, int index) {
  if (library) return Unwrap(Unwrap(DeviceLibrary::Open(*library))->OpenDevice(index));
  if (index != 0) Refuse("index: wanted 0, the one CPU, found " + std::to_string(index));
  return CpuDevice();
}

}  // namespace

void BindDevice(nb::module_& m) {
  m.def("library_devices", &LibraryDevices, nb::arg("path"),
        nb::sig("def library_devices(path: str) -> dict[str, typing.Any]"),
        "Kind, architectures and devices of a library of kernels. Raises where it cannot be used here, with the cure.");

  nb::class_<Buffer>(m, "DeviceBuffer", "Memory of a device.").def_prop_ro("nbytes", [](const Buffer& buffer) {
    return buffer.memory.size();
  });

  nb::class_<Event>(m, "DeviceEvent", "A moment in the work of a stream.")
      .def("synchronize", [](Event& event) { Do([&] { return event.event->Synchronize(); }); })
      .def(
          "ns_since",
          [](Event& event, Event& earlier) {
            if (event.device != earlier.device) Refuse("earlier: wanted an event of the same device");
            return Unwrap(event.event->NsSince(*earlier.event));
          },
          nb::arg("earlier"), "Nanoseconds from an earlier event; both are done.");

  nb::class_<Stream>(m, "DeviceStream", "Work in order; kernels and fills may return before they are done.")
      .def(
          "copy_in",
          [](Stream& stream, const Buffer& to, const Array& array) {
            const View view = ViewOf(array);
            CheckContiguous(view);
            const int64_t bytes = view.size() * static_cast<int64_t>(SizeOf(view.dtype));
            std::byte* const address = Part(stream, to, 0, bytes, "to");
            Do([&] { return stream.stream->CopyToDevice(address, view.data, static_cast<size_t>(bytes)); });
          },
          nb::arg("to"), nb::arg("array"), nb::sig("def copy_in(self, to: DeviceBuffer, array: object) -> None"))
      .def(
          "copy_out",
          [](Stream& stream, const MutableArray& array, const Buffer& from) {
            const View view = ViewOf(array);
            CheckContiguous(view);
            const int64_t bytes = view.size() * static_cast<int64_t>(SizeOf(view.dtype));
            const std::byte* const address = Part(stream, from, 0, bytes, "from");
            Do([&] { return stream.stream->CopyToHost(view.data, address, static_cast<size_t>(bytes)); });
          },
          nb::arg("array"), nb::arg("source"),
          nb::sig("def copy_out(self, array: object, source: DeviceBuffer) -> None"))
      .def(
          "copy",
          [](Stream& stream, const Buffer& to, const Buffer& from, int64_t nbytes, int64_t to_offset,
             int64_t from_offset) {
            std::byte* const target = Part(stream, to, to_offset, nbytes, "to");
            const std::byte* const source = Part(stream, from, from_offset, nbytes, "source");
            Do([&] { return stream.stream->CopyOnDevice(target, source, static_cast<size_t>(nbytes)); });
          },
          nb::arg("to"), nb::arg("source"), nb::arg("nbytes"), nb::arg("to_offset") = 0, nb::arg("source_offset") = 0)
      .def(
          "fill",
          [](Stream& stream, const Buffer& to, uint8_t value, int64_t nbytes, int64_t offset) {
            std::byte* const address = Part(stream, to, offset, nbytes, "to");
            Do([&] { return stream.stream->Fill(address, value, static_cast<size_t>(nbytes)); });
          },
          nb::arg("to"), nb::arg("value"), nb::arg("nbytes"), nb::arg("offset") = 0)
      .def("pointwise", &Pointwise, nb::arg("program"), nb::arg("operands"), nb::arg("shape"), nb::arg("out"),
           nb::sig("def pointwise(self, program: str, operands: collections.abc.Sequence[tuple[DeviceBuffer, "
                   "collections.abc.Sequence[int], int]], shape: collections.abc.Sequence[int], out: DeviceBuffer) -> "
                   "None"),
           "Operator \"pointwise\" of `thresher ops`; operands are (buffer, strides, offset), in elements.")
      .def("norm", &Norm, nb::arg("kind"), nb::arg("x"), nb::arg("out"), nb::arg("rows"), nb::arg("cols"),
           nb::arg("weight") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("residual") = nb::none(),
           nb::arg("sum") = nb::none(), nb::arg("eps") = 1e-5f, nb::arg("row_stride") = nb::none(),
           "layer_norm or rms_norm over rows that lie row_stride apart in all matrices.")
      .def("softmax", &Softmax, nb::arg("x"), nb::arg("out"), nb::arg("outer"), nb::arg("dim"), nb::arg("inner"),
           nb::arg("log") = false)
      .def("gemm", &Gemm, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("m"), nb::arg("n"), nb::arg("k"),
           nb::arg("bias") = nb::none(), nb::arg("type") = "f32", nb::arg("transpose_b") = false,
           nb::arg("allow_tf32") = false, nb::arg("lda") = nb::none(), nb::arg("ldb") = nb::none(),
           nb::arg("ldc") = nb::none(), "c = a @ b + bias; type is that of a and b, f32 or bf16.")
      .def(
          "record",
          [](Stream& stream, Event& event) {
            if (event.device != stream.device) Refuse("event: wanted one of the stream's own device");
            Do([&] { return stream.stream->Record(*event.event); });
          },
          nb::arg("event"))
      .def(
          "wait",
          [](Stream& stream, Event& event) {
            if (event.device != stream.device) Refuse("event: wanted one of the stream's own device");
            Do([&] { return stream.stream->Wait(*event.event); });
          },
          nb::arg("event"), "What is asked of this stream from now on waits for the event.")
      .def("synchronize", [](Stream& stream) { Do([&] { return stream.stream->Synchronize(); }); });

  nb::class_<Device>(m, "Device", "Where kernels run: the CPU, or a device of a library of kernels.")
      .def(nb::new_([](const std::optional<std::string>& library, int index) { return OpenDevice(library, index); }),
           nb::arg("library") = nb::none(), nb::arg("index") = 0)
      .def_prop_ro(
          "info", [](const Device& device) { return ToPython(device.info()); },
          nb::sig("def info(self) -> dict[str, typing.Any]"))
      .def(
          "empty",
          [](const std::shared_ptr<Device>& device, int64_t nbytes) {
            if (nbytes < 0) Refuse("nbytes: wanted at least 0, found " + std::to_string(nbytes));
            return std::make_unique<Buffer>(Buffer{device, Unwrap(device->Allocate(static_cast<size_t>(nbytes)))});
          },
          nb::arg("nbytes"))
      .def("stream",
           [](const std::shared_ptr<Device>& device) {
             return std::make_unique<Stream>(Stream{device, Unwrap(device->CreateStream())});
           })
      .def("event", [](const std::shared_ptr<Device>& device) {
        return std::make_unique<Event>(Event{device, Unwrap(device->CreateEvent())});
      });
}

}  // namespace thresher::bindings
