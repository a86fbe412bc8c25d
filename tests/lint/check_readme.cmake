# SPDX-License-Identifier: Apache-2.0
# The C examples of README.md and docs/c.md compile without a warning, and run on a virtual GPU.
cmake_minimum_required(VERSION 3.23)

cmake_path(GET LIBRARY PARENT_PATH library_dir)
separate_arguments(EMULATOR UNIX_COMMAND "${EMULATOR}")
foreach(page README.md docs/c.md)
  file(READ ${ROOT}/${page} text)
  if(NOT text MATCHES "\n```c\n([^`]+)```")
    message(FATAL_ERROR "${page} has no C example")
  endif()
  file(WRITE ${SCRATCH}/example.c "${CMAKE_MATCH_1}")
  execute_process(COMMAND ${CC} -std=c11 -Wall -Wextra -Wpedantic -Werror
    -I ${ROOT}/pool/include example.c -o example ${LIBRARY} ${VIRTUAL_LIBRARY} -ldl -pthread
    -Wl,--undefined=ductile_virtual_backend -Wl,-rpath,${library_dir}
    WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env DUCTILE_CONF=driver:virtual ${EMULATOR} ./example
    WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
