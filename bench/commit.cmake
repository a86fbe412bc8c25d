# SPDX-License-Identifier: Apache-2.0
# Writes HEADER with the commit of SOURCE_DIR; leaves it alone when it says so already. Of a copy
# without its history, the environment variable DUCTILE_COMMIT tells.
cmake_minimum_required(VERSION 3.23)

set(commit unknown)
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE answer RESULT_VARIABLE status
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)
    set(commit ${answer})
  endif()
endif()
if(commit STREQUAL unknown AND DEFINED ENV{DUCTILE_COMMIT})
  set(commit $ENV{DUCTILE_COMMIT})
endif()
file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
/* Written by the build. */
#define DUCTILE_COMMIT "@commit@"
]])
