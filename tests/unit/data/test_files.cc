#include "unit/data/test_files.h"

#include <stdlib.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace evenkeel::data_test {
namespace {

std::string BigEndian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

OpenedData Must(absl::StatusOr<OpenedData> opened) {
  INFO(opened.status().ToString());
  REQUIRE(opened.ok());
  return *std::move(opened);
}

}  // namespace

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "evenkeel_data_XXXXXX").string();
  REQUIRE(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::Write(const std::string& name, const std::string& bytes) const {
  std::string path = path_ + "/" + name;
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  REQUIRE(file.good());
  return path;
}

std::string Gzip(const std::string& bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string IdxImages(std::uint32_t count, std::uint32_t height, std::uint32_t width, const std::string& pixels) {
  return BigEndian(0x803) + BigEndian(count) + BigEndian(height) + BigEndian(width) + pixels;
}

std::string IdxLabels(const std::string& labels) {
  return BigEndian(0x801) + BigEndian(static_cast<std::uint32_t>(labels.size())) + labels;
}

OpenedData MustOpen(const InputConfig& input) { return Must(OpenTrainingData(input, "")); }

OpenedData MustOpenEval(const InputConfig& input, const std::string& statistics_json) {
  return Must(OpenEvalData(input, "", statistics_json));
}

std::string WhyNot(const InputConfig& input) { return OpenTrainingData(input, "").status().ToString(); }

std::string WhyNotEval(const InputConfig& input, const std::string& statistics_json) {
  return OpenEvalData(input, "", statistics_json).status().ToString();
}

Batch All(const Dataset& dataset) {
  Batch batch;
  absl::Status status = AssembleRange(dataset, 0, dataset.size(), batch);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return batch;
}

bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("in: " << text);
  UNSCOPED_INFO("wanted: " << part);
  return text.find(part) != std::string::npos;
}

std::string DataFolder() {
  const char* folder = getenv("EVENKEEL_DATA");
  return folder != nullptr ? folder : "";
}

}  // namespace evenkeel::data_test
