find_package(benchmark CONFIG REQUIRED)

# evenkeel_benchmark(NAME core_bench SOURCES core_bench.cc ROOMS core [LIBRARIES ...])
#
# One program of build/PRESET/benchmarks, run by `./dev bench NAME`. Sources may include the private headers of src/.
function(evenkeel_benchmark)
  cmake_parse_arguments(BENCH "" "NAME" "SOURCES;ROOMS;LIBRARIES" ${ARGN})
  add_executable(${BENCH_NAME} ${BENCH_SOURCES})
  set_target_properties(${BENCH_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
  foreach(room ${BENCH_ROOMS})
    target_link_libraries(${BENCH_NAME} PRIVATE evenkeel_${room})
  endforeach()
  target_link_libraries(${BENCH_NAME} PRIVATE benchmark::benchmark ${BENCH_LIBRARIES})
  target_include_directories(${BENCH_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  evenkeel_compile_options(${BENCH_NAME})
endfunction()
