# SPDX-License-Identifier: Apache-2.0
# Writes HEADER with the commit of SOURCE_DIR; leaves it alone when it says so already. The environment
# variable DUCTILE_COMMIT tells of a copy whose history is missing, or is not its own.
cmake_minimum_required(VERSION 3.23)

set(commit unknown)
if(DEFINED ENV{DUCTILE_COMMIT})
  set(commit $ENV{DUCTILE_COMMIT})
endif()
find_package(Git QUIET)
if(commit STREQUAL unknown AND Git_FOUND AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE answer RESULT_VARIABLE status
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)
    set(commit ${answer})
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
/* Written by the build. */
#define DUCTILE_COMMIT "@commit@"
]])
