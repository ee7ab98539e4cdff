// Devices: memory, copies, streams and events. What is computed there goes through plans (plan.cc).
#include "thresher/bindings/device.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/run/cpu_device.h"
#include "thresher/run/device_library.h"
#include "thresher/run/mpi_communicator.h"

namespace thresher::bindings {
namespace {

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

void CheckContiguous(const View& view) {
  if (!view.contiguous()) Refuse("array: expected a row-major one without holes; numpy.ascontiguousarray makes it so");
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
  if (index != 0) Refuse("index: expected 0, the one CPU, got " + std::to_string(index));
  return CpuDevice();
}

std::shared_ptr<Device> DeviceOfRank(int rank, int size, uintptr_t all_reduce, uintptr_t all_gather, uintptr_t type,
                                     uintptr_t sum, uintptr_t group) {
  return CpuDeviceOfRank(Unwrap(MakeMpiCommunicator({all_reduce, all_gather, type, sum, group}, rank, size)));
}

}  // namespace

std::byte* Part(const HeldStream& stream, const HeldBuffer& buffer, int64_t offset, int64_t bytes,
                const std::string& name) {
  if (buffer.device != stream.device) Refuse(name + ": expected a buffer of the stream's own device");
  if (offset < 0 || bytes < 0 || offset > static_cast<int64_t>(buffer.memory.size()) ||
      bytes > static_cast<int64_t>(buffer.memory.size()) - offset) {
    Refuse(name + ": expected " + std::to_string(bytes) + " bytes from " + std::to_string(offset) +
           ", got a buffer of " + std::to_string(buffer.memory.size()));
  }
  return buffer.memory.data() + offset;
}

void BindDevice(nb::module_& m) {
  m.def("library_devices", &LibraryDevices, nb::arg("path"),
        nb::sig("def library_devices(path: str) -> dict[str, typing.Any]"),
        "Kind, architectures and devices of a library of kernels. Raises where it cannot be used here, with the cure.");

  nb::class_<HeldBuffer>(m, "DeviceBuffer", "Memory of a device.")
      .def_prop_ro("nbytes", [](const HeldBuffer& buffer) { return buffer.memory.size(); })
      .def_prop_ro("address",
                   [](const HeldBuffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.memory.data()); });

  nb::class_<HeldEvent>(m, "DeviceEvent", "A moment in the work of a stream.")
      .def("synchronize", [](HeldEvent& event) { Do([&] { return event.event->Synchronize(); }); })
      .def(
          "ns_since",
          [](HeldEvent& event, HeldEvent& earlier) {
            if (event.device != earlier.device) Refuse("earlier: expected an event of the same device");
            return Unwrap(event.event->NsSince(*earlier.event));
          },
          nb::arg("earlier"), "Nanoseconds from an earlier event; both are done.");

  nb::class_<HeldStream>(m, "DeviceStream", "Work in order; plans and fills may return before they are done.")
      .def(
          "copy_in",
          [](HeldStream& stream, const HeldBuffer& to, const Array& array) {
            const View view = ViewOf(array);
            CheckContiguous(view);
            const int64_t bytes = view.size() * static_cast<int64_t>(SizeOf(view.dtype));
            std::byte* const address = Part(stream, to, 0, bytes, "to");
            Do([&] { return stream.stream->CopyToDevice(address, view.data, static_cast<size_t>(bytes)); });
          },
          nb::arg("to"), nb::arg("array"), nb::sig("def copy_in(self, to: DeviceBuffer, array: object) -> None"))
      .def(
          "copy_out",
          [](HeldStream& stream, const MutableArray& array, const HeldBuffer& from) {
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
          [](HeldStream& stream, const HeldBuffer& to, const HeldBuffer& from, int64_t nbytes, int64_t to_offset,
             int64_t from_offset) {
            std::byte* const target = Part(stream, to, to_offset, nbytes, "to");
            const std::byte* const source = Part(stream, from, from_offset, nbytes, "source");
            Do([&] { return stream.stream->CopyOnDevice(target, source, static_cast<size_t>(nbytes)); });
          },
          nb::arg("to"), nb::arg("source"), nb::arg("nbytes"), nb::arg("to_offset") = 0, nb::arg("source_offset") = 0)
      .def(
          "fill",
          [](HeldStream& stream, const HeldBuffer& to, uint8_t value, int64_t nbytes, int64_t offset) {
            std::byte* const address = Part(stream, to, offset, nbytes, "to");
            Do([&] { return stream.stream->Fill(address, value, static_cast<size_t>(nbytes)); });
          },
          nb::arg("to"), nb::arg("value"), nb::arg("nbytes"), nb::arg("offset") = 0)
      .def(
          "record",
          [](HeldStream& stream, HeldEvent& event) {
            if (event.device != stream.device) Refuse("event: expected one of the stream's own device");
            Do([&] { return stream.stream->Record(*event.event); });
          },
          nb::arg("event"))
      .def(
          "wait",
          [](HeldStream& stream, HeldEvent& event) {
            if (event.device != stream.device) Refuse("event: expected one of the stream's own device");
            Do([&] { return stream.stream->Wait(*event.event); });
          },
          nb::arg("event"), "What is asked of this stream from now on waits for the event.")
      .def("synchronize", [](HeldStream& stream) { Do([&] { return stream.stream->Synchronize(); }); });

  nb::class_<Device>(m, "Device", "Where kernels run: the CPU, or a device of a library of kernels.")
      .def(nb::new_([](const std::optional<std::string>& library, int index) { return OpenDevice(library, index); }),
           nb::arg("library") = nb::none(), nb::arg("index") = 0)
      .def_static("of_rank", &DeviceOfRank, nb::arg("rank"), nb::arg("size"), nb::kw_only(), nb::arg("all_reduce"),
                  nb::arg("all_gather"), nb::arg("type"), nb::arg("sum"), nb::arg("group"),
                  "The CPU of one rank among `size`: addresses of the MPI library's functions, and its handles.")
      .def_prop_ro(
          "info", [](const Device& device) { return ToPython(device.info()); },
          nb::sig("def info(self) -> dict[str, typing.Any]"))
      .def(
          "empty",
          [](const std::shared_ptr<Device>& device, int64_t nbytes) {
            if (nbytes < 0) Refuse("nbytes: expected at least 0, got " + std::to_string(nbytes));
            return std::make_unique<HeldBuffer>(
                HeldBuffer{device, Unwrap(device->Allocate(static_cast<size_t>(nbytes)))});
          },
          nb::arg("nbytes"))
      .def("stream",
           [](const std::shared_ptr<Device>& device) {
             return std::make_unique<HeldStream>(HeldStream{device, Unwrap(device->CreateStream())});
           })
      .def("event",
           [](const std::shared_ptr<Device>& device) {
             return std::make_unique<HeldEvent>(HeldEvent{device, Unwrap(device->CreateEvent(true))});
           })
      .def(
          "tool_window",
          [](const std::shared_ptr<Device>& device, bool open) { Do([&] { return device->SetToolWindow(open); }); },
          nb::arg("open"),
          "Opens and closes the window outside of which tools that were told so record nothing: cudaProfilerStart.")
      .def(
          "choices", [](const std::shared_ptr<Device>& device) { return Unwrap(device->Choices()); },
          "What was measured to choose among kernels: lines of subject, choice and remark, with tabs between them.")
      .def(
          "learn",
          [](const std::shared_ptr<Device>& device, const std::string& choices) {
            Do([&] { return device->Learn(choices); });
          },
          nb::arg("choices"), "Takes the choices of an earlier process, so that they are not measured again.");
}

}  // namespace thresher::bindings
