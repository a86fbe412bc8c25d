# SPDX-License-Identifier: Apache-2.0
# What the objects say, whatever the sources look like: each shared library exports what its headers
# declare and nothing else, needs no other of ours, and can be loaded late; the archives define no name that
# a program may have too; no object refers to a layer above its own, and pool never calls the driver.
cmake_minimum_required(VERSION 3.23)

function(symbols_of file options result)
  execute_process(COMMAND ${NM} -P ${options} ${file} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "(^|\n)([^ \n]+)[^\n]*" "\\2;" names "${text}")
  string(STRIP "${names}" names)
  set(${result} ${names} PARENT_SCOPE)
endfunction()

# One nm for all objects of a layer: a line "OBJECT: NAME TYPE" for each name.
function(read_names layer options result)
  file(STRINGS ${OBJECTS}/objects_${layer}.txt objects)
  if(NOT objects)
    message(FATAL_ERROR "${layer} has no objects")
  endif()
  execute_process(COMMAND ${NM} -A -P ${options} ${objects} OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(forbid layer pattern)
  read_names(${layer} "-u" text)
  string(REGEX MATCHALL "[^\n]+: ${pattern} U" lines "${text}")
  foreach(line ${lines})
    string(REGEX REPLACE "(.*): (.*) U" "\\1 refers to \\2" complaint "${line}")
    message(SEND_ERROR "${complaint}")
  endforeach()
endfunction()

forbid(vmm "(dseg|dpool)_[^ ]*")
forbid(model "(dseg|dpool)_[^ ]*")
forbid(segments "dpool_[^ ]*")

# A program that runs with more rights than its caller has must not do what the caller's environment
# says: secure_getenv.
foreach(layer vmm model segments pool)
  forbid(${layer} "(__secure_)?getenv")
endforeach()

# Every function of the seam that reaches the driver is dvmm_ and the name of a call.
file(STRINGS ${ROOT}/vmm/driver/driver.h lines REGEX "^ +X\\([a-z_]+,")
string(REGEX MATCHALL "X\\([a-z_]+," calls "${lines}")
list(TRANSFORM calls REPLACE "X\\((.*)," "\\1")
list(LENGTH calls n_calls)
if(n_calls LESS 20)
  message(FATAL_ERROR "the list of driver calls was not found")
endif()
list(JOIN calls "|" calls)
forbid(pool "dvmm_(${calls}|capture_status_of)")

# An archive hides nothing from the program that it is linked into.
foreach(layer vmm segments pool model)
  read_names(${layer} "-g;--defined-only" text)
  string(REGEX MATCHALL "[^\n]+: [^\n ]+ [A-Z]" lines "${text}")
  list(FILTER lines EXCLUDE REGEX ": (ductile|dpool|dseg|dvmm|dti)_[a-z0-9_]+ [A-Z]$")
  foreach(line ${lines})
    message(SEND_ERROR "a global name without a prefix of ours: ${line}")
  endforeach()
endforeach()

function(check_library library)
  symbols_of(${library} "-D;--defined-only" exported)
  set(declared)
  foreach(header ${ARGN})
    file(READ ${ROOT}/${header} text)
    string(REGEX MATCHALL "DUCTILE_API[^;]*;" declarations "${text}")
    foreach(declaration ${declarations})
      string(REGEX MATCH "(ductile_[a-z0-9_]+)\\(" unused "${declaration}")
      if(CMAKE_MATCH_1 AND NOT CMAKE_MATCH_1 IN_LIST exported)
        message(SEND_ERROR "${header} declares ${CMAKE_MATCH_1}, which ${library} does not export")
      endif()
      list(APPEND declared ${CMAKE_MATCH_1})
    endforeach()
  endforeach()
  if(NOT declared)
    message(FATAL_ERROR "the headers of ${library} declare nothing")
  endif()
  list(REMOVE_ITEM exported ${declared})
  foreach(name ${exported})
    message(SEND_ERROR "${library} exports ${name}, which its headers do not declare")
  endforeach()

  # What is loaded late shares little static room for thread-local variables with all others.
  execute_process(COMMAND ${READELF} -d ${library} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  if(text MATCHES "STATIC_TLS")
    message(SEND_ERROR "${library} needs static thread-local storage: dlopen may refuse it")
  endif()
  if(text MATCHES "NEEDED[^\n]*libductile")
    message(SEND_ERROR "${library} needs another library of ours")
  endif()
endfunction()

file(GLOB headers RELATIVE ${ROOT} ${ROOT}/pool/include/*.h)
list(REMOVE_ITEM headers pool/include/ductile_virtual.h)
check_library(${SHARED_LIBRARY} ${headers})
check_library(${VIRTUAL_LIBRARY} pool/include/ductile_virtual.h vmm/driver/open_virtual.h)
