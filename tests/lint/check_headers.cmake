# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, as C11 and as C++17, and so does every header of the tree
# as C11: a header that leans on what was included before it breaks a file whose includes are sorted.
# A program that makes a call of an older version is told what to say instead.
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

file(READ ${ROOT}/pool/include/ductile_removed.h text)
string(REGEX MATCHALL "X\\((ductile_[a-z_]+)" removed "${text}")
list(TRANSFORM removed REPLACE "X\\(" "")
if(NOT removed)
  message(FATAL_ERROR "the list of removed calls was not found")
endif()
list(JOIN removed "(1, 2);\n" calls)
function(refuse_removed language compiler)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/removed.${language})
  file(WRITE ${file} "#include <ductile.h>\nint main(void) {\n${calls}(1, 2);\nreturn 0; }\n")
  execute_process(COMMAND ${compiler} ${ARGN} -O1 -c -o ${file}.o -I ${ROOT}/pool/include ${file}
    ERROR_VARIABLE text)
  foreach(name ${removed})
    if(NOT text MATCHES "${name}[^\n]*: say ")
      message(SEND_ERROR "${name}, which is gone, is not refused with what to say instead:\n${text}")
    endif()
  endforeach()
endfunction()
refuse_removed(c ${CC} -std=c11)
if(CXX)
  refuse_removed(cpp ${CXX} -std=c++17)
endif()

file(GLOB_RECURSE headers ${ROOT}/vmm/*.h ${ROOT}/segments/*.h ${ROOT}/pool/*.h ${ROOT}/bench/*.h)
list(FILTER headers EXCLUDE REGEX "/bench/out/")
foreach(header ${headers})
  compile(${header} ${CC} -std=c11 -D_GNU_SOURCE ${warnings} -fsyntax-only
    -I ${ROOT} -I ${ROOT}/pool/include -include ${header} -x c /dev/null)
endforeach()
if(NOT CXX)
  message(STATUS "no C++ compiler here: checked as C11 only")
endif()
