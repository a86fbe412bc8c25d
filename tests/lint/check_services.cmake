# SPDX-License-Identifier: Apache-2.0
# A build without any service: it compiles, defines no function of theirs, says so where an option asks for one, and
# serves what needs none, as the model and threads that make every call beside every other one judge.
cmake_minimum_required(VERSION 3.23)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(GLOB folders RELATIVE ${ROOT}/pool/services ${ROOT}/pool/services/*)
list(FILTER folders EXCLUDE REGEX "\\.")
set(switches "")
foreach(folder ${folders})
  string(TOUPPER ${folder} service)
  list(APPEND switches -D DUCTILE_WITH_${service}=OFF)
endforeach()

set(build ${SCRATCH}/build)
run(${CMAKE_COMMAND} -S ${ROOT} -B ${build} -G ${GENERATOR} -D CMAKE_C_COMPILER=${CC} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_C_FLAGS_DEBUG= -D CMAKE_COMPILE_WARNING_AS_ERROR=ON -D DUCTILE_CRITERION=OFF
  -D DUCTILE_BUILD_BENCH=OFF ${switches})
run(${CMAKE_COMMAND} --build ${build} --target ductile ductile_virtual model-run stress-acts)
run(${NM} --defined-only ${build}/libductile.a)
string(REGEX MATCH "dpool_(fill|map_callbacks|wire|tag|outgoing|incoming)_[a-z]+" found "${output}")
if(found)
  message(FATAL_ERROR "the library without services defines ${found}")
endif()

file(GLOB_RECURSE virtual_library ${build}/libductile_virtual.a)
run(${CC} -I ${ROOT}/pool/include ${ROOT}/tests/lint/consumer_alone.c -o ${SCRATCH}/alone ${build}/libductile.a
  ${virtual_library} -ldl -pthread -Wl,--undefined=ductile_virtual_backend)
separate_arguments(EMULATOR UNIX_COMMAND "${EMULATOR}")
foreach(option find:stale_writes shareable:fd)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env DUCTILE_CONF=driver:virtual,${option} ${EMULATOR} ${SCRATCH}/alone
    OUTPUT_VARIABLE output)
  if(NOT output MATCHES "${option} needs a library that was built with DUCTILE_WITH_[A-Z]+\nDUCTILE_ERR_UNSUPPORTED")
    message(FATAL_ERROR "without services, ${option} says: ${output}")
  endif()
endforeach()

run(${EMULATOR} ${build}/tests/model-run --seeds 40)
run(${EMULATOR} ${build}/tests/stress-acts --programs 100)
