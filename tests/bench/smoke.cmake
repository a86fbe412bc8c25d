# SPDX-License-Identifier: Apache-2.0
# What the smoke tests share: running ductile-bench and looking at its JSON lines.
file(MAKE_DIRECTORY ${SCRATCH})
set(ENV{DUCTILE_CONF} "")

# A training loop small enough for any build.
set(small_loop --layers 2 --hidden 128 --heads 2 --vocab 1000 --steps 5 --device virtual)

# bench(result arguments...): runs it, wants status 0, gives what it printed.
function(bench result)
  execute_process(COMMAND ${BENCH} ${ARGN} WORKING_DIRECTORY ${SCRATCH}
    OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT errors STREQUAL "")
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ${status}\n${errors}")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# find_matplotlib(result): a Python that can draw; empty when there is none.
function(find_matplotlib result)
  set(python "")
  foreach(candidate ${PYTHON} /usr/bin/python3)
    execute_process(COMMAND ${candidate} -c "import matplotlib" RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(python ${candidate})
    endif()
  endforeach()
  set(${result} "${python}" PARENT_SCOPE)
endfunction()

# expect_picture(python from to words...): bench/plot.py draws the one file as the other, with these words.
function(expect_picture python from to)
  file(REMOVE ${SCRATCH}/${to})
  execute_process(COMMAND ${python} ${ROOT}/bench/plot.py ${from} ${to}
    WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${SCRATCH}/${to} picture)
  foreach(words IN LISTS ARGN)
    if(NOT picture MATCHES "<svg .*>${words}</text>")
      message(FATAL_ERROR "${to} does not say ${words}")
    endif()
  endforeach()
endfunction()

# expect_lines(text n keys...): n JSON objects, one a line, each with these keys and completed.
function(expect_lines text n)
  string(REGEX MATCHALL "[^\n]+" lines "${text}")
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines n_lines)
  if(NOT n_lines EQUAL n)
    message(SEND_ERROR "${n_lines} lines, not ${n}:\n${text}")
  endif()
  while(NOT text STREQUAL "")
    string(FIND "${text}" "\n" end)
    string(SUBSTRING "${text}" 0 ${end} line)
    math(EXPR end "${end} + 1")
    string(SUBSTRING "${text}" ${end} -1 text)
    foreach(key contender completed ${ARGN})
      string(JSON value ERROR_VARIABLE error GET "${line}" ${key})
      if(error)
        message(SEND_ERROR "${error}: ${line}")
      endif()
    endforeach()
    string(JSON completed GET "${line}" completed)
    if(NOT completed)
      message(SEND_ERROR "not completed: ${line}")
    endif()
  endwhile()
endfunction()

# What docs/benchmarking.md promises of a replay.
set(replay_keys trace device events live_peak_bytes reserved_peak_bytes efficiency ns_per_op
  loop_ns_per_op wall_ns_per_op driver_time_us creates releases maps unmaps stream_syncs event_waits
  pressure_waits pressure_returns pressure_returned_bytes address_span_bytes)
