#include "evenkeel/core/shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (std::int64_t dim : dims_) product *= dim;
  return product;
}

Shape Shape::WithBatch(std::int64_t batch) const {
  Shape shape;
  shape.dims_.reserve(dims_.size() + 1);
  shape.dims_.push_back(batch);
  shape.dims_.insert(shape.dims_.end(), dims_.begin(), dims_.end());
  return shape;
}

Shape Shape::WithoutBatch() const {
  EK_CHECK(rank() >= 1);
  return Shape(dims().subspan(1));
}

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(dims_, ","), "]"); }

}  // namespace evenkeel
