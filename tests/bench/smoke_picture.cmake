# SPDX-License-Identifier: Apache-2.0
# The picture that bench/run ends with.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

# Where nothing can draw, the script says so in one line.
execute_process(COMMAND ${PYTHON} -c "import sys; sys.modules['matplotlib'] = None; import plot; plot.run('', None)" a b
  WORKING_DIRECTORY ${ROOT}/bench RESULT_VARIABLE status ERROR_VARIABLE errors)
if(NOT status EQUAL 1 OR NOT errors MATCHES "^[^\n]* has no matplotlib\n$")
  message(FATAL_ERROR "without matplotlib: ${status}\n${errors}")
endif()

find_matplotlib(python)
if(NOT python)
  message("skipped: no Python here has matplotlib")
  return()
endif()

bench(ignored generate vary ${small_loop} --write-trace ${SCRATCH}/small.trace)
bench(ignored replay small.trace --device virtual --timeline timeline.csv)
expect_picture(${python} plot timeline.csv timeline.svg
  small "[0-9.]+ GiB Ductile" "[0-9.]+ GiB native" "[0-9.]+ GiB live")

# Two pieces of a soak, and two of a training.
set(sample "900 ns each, 9 KiB resident, 9 KiB bookkeeping, 9 handles, 9 mappings, 9 MiB addresses, 9 MiB live")
file(WRITE ${SCRATCH}/soak.txt "# piece 1, after 0 operations in 0 s\n10 operations: ${sample}\n"
  "# piece 2, after 10 operations in 1 s\n20 operations: ${sample}\n30 operations: ${sample}\n")
expect_picture(${python} plot_long soak.txt soak.svg "ns an operation" "GiB live" "over operations, millions" Ductile)
set(row "\"held\":9,\"used\":9,\"fragmentation_percent\":1,\"step_ms\":1,\"p99_ms\":1,\"resident\":1")
set(row "${row},\"retries\":0,\"caught\":0}\n")
file(WRITE ${SCRATCH}/rows.jsonl "{\"allocator\":\"ductile\",\"piece\":1,\"seconds\":1,${row}"
  "{\"allocator\":\"ductile\",\"piece\":2,\"seconds\":2,${row}"
  "{\"allocator\":\"expandable\",\"piece\":1,\"seconds\":1,${row}")
expect_picture(${python} plot_long rows.jsonl rows.svg "GiB held" retries Ductile "expandable segments")
