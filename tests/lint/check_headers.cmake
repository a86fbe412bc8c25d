# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, as C11 and as C++17, and so does every header of the tree
# as C11: a header that leans on what was included before it breaks a file whose includes are sorted.
cmake_minimum_required(VERSION 3.23)

set(warnings -Wall -Wextra -Wpedantic -Wundef -Werror)

function(compile name)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status ERROR_VARIABLE text OUTPUT_VARIABLE text)
  if(NOT status EQUAL 0)
    message(SEND_ERROR "${name} does not compile alone:\n${text}")
  endif()
endfunction()

file(GLOB public_headers RELATIVE ${ROOT}/pool/include ${ROOT}/pool/include/*.h)
foreach(header ${public_headers})
  set(file ${ROOT}/pool/include/${header})
  compile("${header} as C11" ${CC} -std=c11 ${warnings} -Wstrict-prototypes -fsyntax-only
    -I ${ROOT}/pool/include -include ${file} -x c /dev/null)
  if(CXX)
    compile("${header} as C++17" ${CXX} -std=c++17 ${warnings} -fsyntax-only
      -I ${ROOT}/pool/include -include ${file} -x c++ /dev/null)
  endif()
endforeach()

file(GLOB_RECURSE headers ${ROOT}/vmm/*.h ${ROOT}/segments/*.h ${ROOT}/pool/*.h ${ROOT}/bench/*.h
  ${ROOT}/extras/*.h)
list(FILTER headers EXCLUDE REGEX "/bench/out/")
foreach(header ${headers})
  compile(${header} ${CC} -std=c11 -D_GNU_SOURCE ${warnings} -fsyntax-only
    -I ${ROOT} -I ${ROOT}/pool/include -include ${header} -x c /dev/null)
endforeach()
if(NOT CXX)
  message(STATUS "no C++ compiler here: checked as C11 only")
endif()
