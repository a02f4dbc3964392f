// interop_writer FOLDER: writes an event file, a checkpoint of three servers and its export, and the numbers that they
// hold: scalars.txt (TAG STEP VALUE) and tensors.txt (NAME RANK DIMS... VALUES...).
#include <cmath>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {
namespace {

absl::Status WriteEvents(Storage& storage, const std::string& folder) {
  EK_ASSIGN_OR_RETURN(auto writer, EventFileWriter::Open(storage, JoinPath(folder, "events"), Clock::Real(), "chief"));
  std::string expected;
  Rng rng(1);
  for (std::int64_t step = 0; step < 500; ++step) {
    const std::vector<Scalar> scalars = {{"loss", std::exp(rng.NextNormal())},
                                         {"learning_rate", 0.1 / static_cast<double>(1 + step)},
                                         {"worker/1/batch_size", static_cast<double>(rng.Below(1000))},
                                         {"tag with é", -1e30 * rng.NextDouble()}};
    EK_RETURN_IF_ERROR(writer->Write(step * 10'000'000'000, scalars));
    for (const Scalar& scalar : scalars) {
      absl::StrAppend(&expected, scalar.tag, "\t", step * 10'000'000'000, "\t", absl::StrFormat("%.17g", scalar.value),
                      "\n");
    }
  }
  EK_RETURN_IF_ERROR(writer->Flush());
  return storage.WriteAtomic(JoinPath(folder, "scalars.txt"), AsBytes(expected));
}

// Three servers, the flat vector cut at multiples of 16 floats.
absl::Status WriteCheckpoint(Storage& storage, const std::string& folder, const Manifest& description,
                             const std::vector<float>& flat) {
  Manifest manifest = description;
  const std::string checkpoint = CheckpointFolder(folder, manifest.version);
  EK_RETURN_IF_ERROR(storage.MakeFolder(checkpoint));
  const std::int64_t blocks = manifest.total_floats / 16;
  for (std::int64_t server = 0; server < 3; ++server) {
    const std::int64_t begin = blocks * server / 3 * 16;
    const std::int64_t end = blocks * (server + 1) / 3 * 16;
    const auto share = std::span(flat).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    EK_ASSIGN_OR_RETURN(PartInfo part,
                        WritePart(storage, checkpoint, PartFileName(ServerIndex(static_cast<std::uint32_t>(server)), 3),
                                  {{"parameters", {{begin, share}}}}));
    manifest.parts.push_back(part);
  }
  return WriteManifest(storage, folder, manifest);
}

absl::Status WriteTensors(Storage& storage, const std::string& folder) {
  Manifest manifest;
  manifest.job_id = "interop";
  manifest.version = {Generation(1), CommitNumber(5)};
  manifest.tensors = {
      {"conv1/weight", Shape{3, 2, 5, 5}}, {"scalar", Shape{}}, {"tensor/é \"x\"", Shape{7}}, {"norm/mean", Shape{33}}};
  manifest.tensors[3].statistic = true;
  manifest.parameter_floats = 160 + 16 + 16;
  manifest.total_floats = manifest.parameter_floats + 48;
  const std::vector<std::size_t> begins = {0, 160, 176, 192};
  std::vector<float> flat(static_cast<std::size_t>(manifest.total_floats));
  Rng rng(2);
  for (float& value : flat) value = static_cast<float>(rng.NextNormal());
  flat[0] = std::numeric_limits<float>::denorm_min();
  flat[1] = -std::numeric_limits<float>::max();
  flat[2] = std::numeric_limits<float>::infinity();
  EK_RETURN_IF_ERROR(WriteCheckpoint(storage, folder, manifest, flat));
  EK_RETURN_IF_ERROR(ExportCheckpoint(storage, folder, manifest.version, JoinPath(folder, "model.safetensors")));

  std::string expected;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const TensorSpec& tensor = manifest.tensors[i];
    absl::StrAppend(&expected, tensor.name, "\t", tensor.shape.rank());
    for (std::int64_t dim : tensor.shape.dims()) absl::StrAppend(&expected, "\t", dim);
    for (std::int64_t j = 0; j < tensor.shape.elements(); ++j) {
      absl::StrAppend(&expected, "\t", absl::StrFormat("%.9g", flat[begins[i] + static_cast<std::size_t>(j)]));
    }
    expected += '\n';
  }
  return storage.WriteAtomic(JoinPath(folder, "tensors.txt"), AsBytes(expected));
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: interop_writer FOLDER\n";
    return static_cast<int>(ExitCode::kWrongInput);
  }
  absl::Status status = WriteEvents(Storage::Posix(), argv[1]);
  if (status.ok()) status = WriteTensors(Storage::Posix(), argv[1]);
  if (!status.ok()) std::cerr << status << "\n";
  return static_cast<int>(ExitCodeFor(status));
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) { return evenkeel::Main(argc, argv); }
