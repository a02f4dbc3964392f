#include "evenkeel/core/shape.h"

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

TEST_CASE("a shape counts its elements", "[core][shape]") {
  CHECK(Shape().elements() == 1);
  CHECK(Shape({32, 784}).elements() == 25088);
  CHECK(Shape({4, 0, 2}).elements() == 0);
}

TEST_CASE("a shape is indexed from both ends", "[core][shape]") {
  Shape shape = {2, 3, 4};
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 4);
  shape[-2] = 7;
  CHECK(shape == Shape({2, 7, 4}));
}

TEST_CASE("a batch dimension comes first and goes again", "[core][shape]") {
  Shape shape = {28, 28, 1};
  CHECK(shape.WithBatch(32) == Shape({32, 28, 28, 1}));
  CHECK(shape.WithBatch(32).WithoutBatch() == shape);
  CHECK(Shape({5}).WithoutBatch() == Shape());
}

TEST_CASE("a shape reads as a list", "[core][shape]") {
  CHECK(Shape({32, 784}).ToString() == "[32,784]");
  CHECK(Shape().ToString() == "[]");
}

}  // namespace
}  // namespace evenkeel
