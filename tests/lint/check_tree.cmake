# SPDX-License-Identifier: Apache-2.0
# Habits of the tree: C and C++ files stay below 800 lines, every source says its licence, file names
# are unique in a layer, nothing is unmapped without proof, scripts can be executed, and nothing names a
# path of one machine.
cmake_minimum_required(VERSION 3.23)

set(max_lines 800)

file(GLOB_RECURSE sources ${ROOT}/vmm/*.[ch] ${ROOT}/segments/*.[ch] ${ROOT}/pool/*.[ch]
  ${ROOT}/bench/*.[ch] ${ROOT}/bench/*.[ch]pp ${ROOT}/tests/*.[ch] ${ROOT}/python/ductile_gpu/*.h
  ${ROOT}/python/ductile_gpu/*.cpp ${ROOT}/extras/*.[ch] ${ROOT}/extras/*.[ch]pp)
file(GLOB_RECURSE scripts ${ROOT}/python/backend/*.py ${ROOT}/python/ductile_gpu/*.py
  ${ROOT}/python/tools/*.py ${ROOT}/python/tests/*.py ${ROOT}/python/examples/*.py
  ${ROOT}/bench/*.py ${ROOT}/bench/*.sh ${ROOT}/tests/*.cmake
  ${ROOT}/bench/*.cmake ${ROOT}/cmake/*.cmake
  ${ROOT}/extras/*.py ${ROOT}/extras/*.sh ${ROOT}/extras/*.cmake)
file(GLOB_RECURSE lists ${ROOT}/vmm/CMakeLists.txt ${ROOT}/segments/CMakeLists.txt
  ${ROOT}/pool/CMakeLists.txt ${ROOT}/bench/CMakeLists.txt
  ${ROOT}/tests/CMakeLists.txt ${ROOT}/python/CMakeLists.txt ${ROOT}/extras/CMakeLists.txt)
file(GLOB_RECURSE pages ${ROOT}/docs/*.md ${ROOT}/bench/*.md ${ROOT}/python/*.md ${ROOT}/vmm/*.md
  ${ROOT}/extras/*.md)
list(FILTER pages EXCLUDE REGEX "/python/(build|dist|\\.)")
set(programs bench/run bench/plot.py tests/run tests/campaign tests/mutate tests/coverage tests/readme tests/variants
  tests/sanitize python/tests/run python/tests/build_package python/tests/torch_versions .ci/run)
list(TRANSFORM programs PREPEND ${ROOT}/)
file(GLOB_RECURSE extras ${ROOT}/extras/*)
list(FILTER extras EXCLUDE REGEX "/\\.|\\.[a-z]+$")
list(APPEND programs ${extras})
file(GLOB_RECURSE tables ${ROOT}/extras/*.toml)
set(root_files ${ROOT}/python/pyproject.toml ${tables} ${ROOT}/CMakeLists.txt ${ROOT}/CMakePresets.json ${ROOT}/README.md)
list(LENGTH sources n_sources)
if(n_sources LESS 10)
  message(FATAL_ERROR "the sources were not found")
endif()

set(names "")
foreach(file ${sources})
  file(READ ${file} text)
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines n_lines)
  if(n_lines GREATER max_lines)
    message(SEND_ERROR "${file} has ${n_lines} lines; ${max_lines} are the most")
  endif()
  if(NOT text MATCHES "^/\\* SPDX-License-Identifier: Apache-2.0 \\*/\n")
    message(SEND_ERROR "${file} does not begin with its SPDX line")
  endif()
  cmake_path(GET file FILENAME name)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${ROOT} OUTPUT_VARIABLE layer)
  string(REGEX REPLACE "^((extras/)?[^/]+).*" "\\1" layer ${layer})
  if(${layer}/${name} IN_LIST names)
    message(SEND_ERROR "${file}: another file of its layer is called ${name}")
  endif()
  list(APPEND names ${layer}/${name})
endforeach()

# Proof that the GPU is done (segments/unmap_handles.h) is made in one file, and what unmaps asks for
# it, or says why it need not.
set(unmappers segments/unmap_handles.c segments/grow.c segments/foreign.c)
foreach(file ${sources})
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${ROOT})
  if(file MATCHES "^(segments|pool)/" AND NOT file MATCHES "^segments/unmap_handles\\.[ch]$")
    file(STRINGS ${ROOT}/${file} lines REGEX "made_by|\\(dseg_idle\\) *{|dseg_idle [a-z_]+ = {[^0]")
    foreach(line ${lines})
      message(SEND_ERROR "${file} makes a proof of its own: ${line}")
    endforeach()
  endif()
  if(file MATCHES "^(vmm/[a-z_]+\\.|segments/|pool/)" AND NOT file IN_LIST unmappers)
    file(STRINGS ${ROOT}/${file} lines REGEX "dvmm_unmap\\(")
    foreach(line ${lines})
      message(SEND_ERROR "${file} unmaps without a proof: ${line}")
    endforeach()
  endif()
endforeach()

foreach(file ${scripts} ${lists} ${programs} ${ROOT}/CMakeLists.txt)
  file(STRINGS ${file} first_lines LIMIT_COUNT 2)
  if(NOT "# SPDX-License-Identifier: Apache-2.0" IN_LIST first_lines)
    message(SEND_ERROR "${file} does not begin with its SPDX line")
  endif()
endforeach()
foreach(file ${programs})
  execute_process(COMMAND test -x ${file} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(SEND_ERROR "${file} cannot be executed")
  endif()
endforeach()

# The character classes keep this line from finding itself.
set(machine_path "(^|[^A-Za-z0-9_.}>-])/([w]ork|[t]mp|[h]ome|[r]oot|[U]sers|[m]nt)/")
foreach(file ${sources} ${scripts} ${lists} ${pages} ${programs} ${root_files})
  file(STRINGS ${file} lines REGEX "${machine_path}")
  foreach(line ${lines})
    message(SEND_ERROR "${file} names a path of one machine: ${line}")
  endforeach()
endforeach()
