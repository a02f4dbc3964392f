find_package(Catch2 2 CONFIG REQUIRED)

# Catch2's main, compiled once.
add_library(evenkeel_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/main.cc)
target_link_libraries(evenkeel_test_main PUBLIC Catch2::Catch2)

# evenkeel_test(NAME unit_chief SOURCES a_test.cc ROOMS chief [LABELS fast] [TIMEOUT 60] [LIBRARIES ...] [SERIAL])
#
# One test program and one ctest entry. Sources may include the private headers of src/. TIMEOUT in seconds, several
# times as long under a sanitizer. SERIAL runs it alone: for tests that start many processes. The labels grpc
# and openmp keep programs that use those libraries' threads away from ThreadSanitizer.
function(evenkeel_test)
  cmake_parse_arguments(TEST "SERIAL" "NAME;TIMEOUT" "SOURCES;ROOMS;LABELS;LIBRARIES;ENVIRONMENT" ${ARGN})
  add_executable(${TEST_NAME} ${TEST_SOURCES})
  set_target_properties(${TEST_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  foreach(room ${TEST_ROOMS})
    target_link_libraries(${TEST_NAME} PRIVATE evenkeel_${room})
  endforeach()
  target_link_libraries(${TEST_NAME} PRIVATE evenkeel_test_main ${TEST_LIBRARIES})
  target_include_directories(${TEST_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${TEST_NAME} PRIVATE EVENKEEL_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                  EVENKEEL_BINARY_DIR="${PROJECT_BINARY_DIR}")
  evenkeel_compile_options(${TEST_NAME})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  if(EVENKEEL_SANITIZE)
    math(EXPR TEST_TIMEOUT "${TEST_TIMEOUT} * 6")
  endif()
  add_test(NAME ${TEST_NAME} COMMAND ${TEST_NAME})
  set_tests_properties(${TEST_NAME} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}"
                                               ENVIRONMENT "${TEST_ENVIRONMENT}" RUN_SERIAL ${TEST_SERIAL})
endfunction()
