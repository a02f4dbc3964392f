// What `evenkeel check` looks at, one function a line of its output: a sentence when all is well, else an error that
// says what is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/config/cluster.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel::apps {

// Also batch_size_list.
absl::StatusOr<std::string> DescribeCluster(const Cluster& cluster, bool chief_trains);
std::string DescribeExperiment(const Experiment& experiment, const absl::StatusOr<Cluster>& cluster, bool chief_trains);
// Every host name stands for an address.
absl::StatusOr<std::string> CheckAddresses(const Cluster& cluster);
// The ports of chief and servers that are this machine's can be listened on.
absl::StatusOr<std::string> CheckPorts(const Cluster& cluster);
// Opens the evaluation data too, where there is any.
absl::StatusOr<std::string> DescribeData(const Experiment& experiment, const absl::StatusOr<OpenedData>& training,
                                         const std::string& data_folder);
// The parameters' bytes.
absl::StatusOr<std::int64_t> BuildModel(const Experiment& experiment, const Dataset& dataset);
std::string DescribeModel(std::int64_t parameter_bytes);
// What the processes listed for this machine hold of parameters, against the memory that is free.
absl::StatusOr<std::string> CheckMemory(const Experiment& experiment, const Cluster& cluster, bool chief_trains,
                                        std::int64_t parameter_bytes);
// A file can be written, renamed and removed.
absl::StatusOr<std::string> CheckModelDir(const std::string& model_dir);

}  // namespace evenkeel::apps
