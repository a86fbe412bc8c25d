# SPDX-License-Identifier: Apache-2.0
# Under the caps of bench/capped one of the two completes, and Ductile with sizes=tight where it did not, as
# docs/settings.md says.
cmake_minimum_required(VERSION 3.23)

execute_process(COMMAND ${ROOT}/bench/capped --device virtual ${BENCH}
  OUTPUT_VARIABLE rows RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "bench/capped ended with status ${status}")
endif()

# expect(TRACE CONTENDER SETTINGS COMPLETED)
function(expect trace contender settings completed)
  set(row "\"trace\":\"${trace}\"[^\n]*\"contender\":\"${contender}\"${settings}[^\n]*")
  if(NOT rows MATCHES "${row}\"completed\":${completed}")
    message(SEND_ERROR "${trace} under ${contender}${settings}: completed is not ${completed}")
  endif()
endfunction()

foreach(trace fsdp2_llama vit_multistream_record fsdp oneshot gpt2_medium_var_batch_seq resnet50_var_batch_res)
  expect(${trace} ductile ",\"settings\":\\[\\]" true)
  expect(${trace} expandable "" false)
endforeach()
foreach(trace llama_1b_lora_recompute offload)
  expect(${trace} ductile ",\"settings\":\\[\\]" false)
  expect(${trace} ductile ",\"settings\":\\[\"sizes=tight\"\\]" true)
  expect(${trace} expandable "" true)
endforeach()
