// Runs a model file: the inputs' bytes come from standard input, one after the other, the outputs' go to standard
// output. Counts the kernels that ran.
#include <cstddef>
#include <iostream>
#include <vector>

#include "thresher/base/dtype.h"
#include "thresher/base/status.h"
#include "thresher/base/tensor.h"
#include "thresher/base/version.h"
#include "thresher/base/view.h"
#include "thresher/pti.h"
#include "thresher/run/model_file.h"

namespace {

size_t kernels = 0;

void GiveBuffer(uint8_t** buffer, size_t* size, void*) {
  *size = size_t{1} << 20;
  *buffer = new uint8_t[*size];
}

void TakeBuffer(uint8_t* buffer, size_t, size_t valid_size, void* api) {
  const thresher_pti_record* record = nullptr;
  while (static_cast<const thresher_pti_api*>(api)->next_record(buffer, valid_size, &record) == THRESHER_PTI_OK) {
    kernels += record->kind == THRESHER_PTI_KIND_KERNEL ? 1 : 0;
  }
  delete[] buffer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: run_model FILE < inputs > outputs\n";
    return 2;
  }
  const thresher::Result<thresher::Model> model = thresher::LoadModel(argv[1]);
  if (!model.ok()) {
    std::cerr << model.status().message() << "\n";
    return 1;
  }
  std::vector<std::vector<char>> bytes;
  std::vector<thresher::View> inputs;
  for (const thresher::PortType& port : model.value().inputs()) {
    const auto size = static_cast<std::streamsize>(thresher::NumElements(port.shape)) *
                      static_cast<std::streamsize>(thresher::SizeOf(port.dtype));
    bytes.emplace_back(static_cast<size_t>(size));
    std::cin.read(bytes.back().data(), size);
    inputs.push_back(thresher::MakeView(bytes.back().data(), port.dtype, port.shape));
  }
  const thresher_pti_api* api = thresher_pti_get_api(THRESHER_PTI_VERSION);
  api->register_callbacks(GiveBuffer, TakeBuffer, const_cast<thresher_pti_api*>(api));
  api->enable(THRESHER_PTI_KIND_KERNEL);
  const thresher::Result<std::vector<thresher::OwnedTensor>> outputs = model.value().Run(inputs);
  api->disable(THRESHER_PTI_KIND_KERNEL);
  api->flush_all();
  if (!outputs.ok()) {
    std::cerr << outputs.status().message() << "\n";
    return 1;
  }
  for (const thresher::OwnedTensor& tensor : outputs.value()) {
    std::cout.write(reinterpret_cast<const char*>(tensor.bytes->data()),
                    static_cast<std::streamsize>(tensor.bytes->size()));
  }
  std::cerr << "thresher " << thresher::kVersion << " ran " << model.value().name() << " with " << kernels
            << " kernels\n";
}
