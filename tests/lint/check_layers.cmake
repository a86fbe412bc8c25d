# SPDX-License-Identifier: Apache-2.0
# No include climbs: bench -> pool -> segments -> vmm is the only way down. The public headers
# are everybody's vocabulary, and are included as <ductile.h> and <ductile_virtual.h>. The Python
# package speaks to those headers alone: its C++ names no layer.
cmake_minimum_required(VERSION 3.23)

set(above_vmm segments pool bench tests python)
set(above_segments pool bench tests python)
set(above_pool bench tests python)
set(above_bench tests python)

set(n_files 0)
foreach(layer vmm segments pool bench)
  list(JOIN above_${layer} "|" above)
  file(GLOB_RECURSE files ${ROOT}/${layer}/*.[ch])
  foreach(file ${files})
    math(EXPR n_files "${n_files} + 1")
    file(STRINGS ${file} climbs REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"](${above})/")
    # A path that names no layer, or steps out of its folder, hides where it leads.
    file(STRINGS ${file} hidden REGEX "^[ \t]*#[ \t]*include[ \t]*\"(\\.|[^/\"]*\")")
    list(FILTER hidden EXCLUDE REGEX "\"commit\\.h\"") # made by the build
    if(file MATCHES "/pool/include/")
      set(hidden "")
    endif()
    foreach(line ${climbs} ${hidden})
      message(SEND_ERROR "${file}: ${line}")
    endforeach()
  endforeach()
endforeach()

file(GLOB_RECURSE files ${ROOT}/python/ductile_gpu/*.h ${ROOT}/python/ductile_gpu/*.cpp)
foreach(file ${files})
  file(STRINGS ${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"](vmm|segments|pool|bench|tests)/")
  foreach(line ${lines})
    message(SEND_ERROR "${file}: ${line}")
  endforeach()
endforeach()
if(n_files EQUAL 0)
  message(FATAL_ERROR "no file was looked at")
endif()
