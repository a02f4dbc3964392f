#include "data/known_sets.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "data/files.h"
#include "data/source_files.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel::data {
namespace {

struct Known {
  absl::string_view name;
  absl::string_view marker;  // part of a folder's or file's name; the first match in the table counts
  absl::string_view origin;
};

constexpr Known kKnown[] = {
    {"fashion-mnist", "fashion-mnist",
     "the Debian package dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist (data/fashion, the "
     "four .gz files, in fashion-mnist/ of the data folder)"},
    {"mnist", "mnist",
     "http://yann.lecun.com/exdb/mnist (four .gz files, in mnist/ of the data folder; any mirror of the IDX files "
     "serves)"},
    {"cifar10", "cifar",
     "https://www.cs.toronto.edu/~kriz/cifar.html (the binary version; "
     "train-10000.bin.gz and test-2000.bin.gz are any 10,000 and 2,000 of its records, by gzip, in cifar10/ of the "
     "data folder)"},
    {"wine-quality", "wine",
     "the UCI repository, https://archive.ics.uci.edu/dataset/186/wine+quality (in wine-quality/ of the data folder)"},
    {"a9a", "a9a",
     "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html (a9a and a9a.t, "
     "by gzip, in a9a/ of the data folder)"},
    {"agaricus", "agaricus", "https://github.com/dmlc/xgboost (demo/data, in agaricus/ of the data folder)"},
    {"rcv1", "rcv1", "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html (rcv1.binary)"},
    {"movielens", "movielens", "https://grouplens.org/datasets/movielens (in movielens/ of the data folder)"},
};

const Known* Find(absl::string_view path) {
  // Also "${FASHION_MNIST}/train-images". The file and its folder alone, so that a folder far above names no set.
  std::string plain = absl::StrReplaceAll(absl::AsciiStrToLower(path), {{"_", "-"}});
  std::vector<absl::string_view> parts = absl::StrSplit(plain, '/', absl::SkipEmpty());
  std::reverse(parts.begin(), parts.end());
  if (parts.size() > 2) parts.resize(2);
  for (const Known& known : kKnown) {
    for (absl::string_view part : parts) {
      if (absl::StrContains(part, known.marker)) return &known;
    }
  }
  return nullptr;
}

}  // namespace

std::string SetNameOf(absl::string_view path) {
  if (const Known* known = Find(path)) return std::string(known->name);
  std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  return parts.empty() ? "?" : std::string(parts[parts.size() > 1 ? parts.size() - 2 : 0]);
}

std::string OriginOf(absl::string_view path) {
  if (const Known* known = Find(path)) return absl::StrCat(known->name, " is to be had from ", known->origin);
  return "check the path, and that EVENKEEL_DATA or --data names the folder that holds the set";
}

std::vector<std::string> FilesOf(const SourceConfig& source) {
  return std::visit(
      [](const auto& typed) -> std::vector<std::string> {
        using Source = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<Source, IdxSource>) {
          return {typed.images, typed.labels};
        } else if constexpr (std::is_same_v<Source, CustomSource>) {
          return {};
        } else {
          return typed.files;
        }
      },
      source);
}

}  // namespace evenkeel::data

namespace evenkeel {

std::vector<KnownSet> DescribeSets(const InputConfig& input, std::string_view data_folder) {
  std::vector<std::string> texts = data::FilesOf(input.train);
  if (input.eval) {
    for (std::string& text : data::FilesOf(*input.eval)) texts.push_back(std::move(text));
  }
  std::vector<KnownSet> sets;
  for (const std::string& text : texts) {
    std::string name = data::SetNameOf(text);
    auto found = std::find_if(sets.begin(), sets.end(), [&](const KnownSet& set) { return set.name == name; });
    if (found == sets.end()) {
      const data::Known* known = data::Find(text);
      sets.push_back({name, known != nullptr ? std::string(known->origin) : "not a set of the experiments", {}, {}});
      found = sets.end() - 1;
    }
    absl::StatusOr<data::ResolvedFile> file = data::ResolveFile(text, std::string(data_folder));
    std::string path = file.ok() ? file->path : text;
    if (!file.ok() || !file->exists) found->missing.push_back(path);
    found->files.push_back(std::move(path));
  }
  return sets;
}

}  // namespace evenkeel
