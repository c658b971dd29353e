#!/bin/sh
# SPDX-License-Identifier: MIT
# faults.sh TABLE LIBRARY...: tests that each call of the LIBRARYs that can fail is in the TABLE (faults.inc),
# or in the list below of calls whose failure changes nothing: av_bsf and its neighbours leave a GPU's clip to the CPU,
# or belong to programs that receive orders or make clips; if a file's own path is not found (fopen, getline), the program is only searched for elsewhere.
set -eu
table=$1
shift
can_fail='av.*|sws_.*|dnnl_.*|pthread_.*|malloc|calloc|realloc|aligned_alloc|posix_memalign|strn?dup
realpath|v?asprintf|getline|open.*|creat.*|fopen.*|fdopen|fclose|fflush|fread|fwrite|fputs|fputc
read|readv|write|writev|pread.*|pwrite.*|close|lseek.*|[fl]?stat.*|f.*sync|f?truncate.*|.*fallocate.*
rename.*|link.*|mkdir.*|mkstemp.*|fchmod|mmap.*|fork|vfork|posix_spawn.*|exec.*|wait|waitpid|waitid
pipe2?|socket.*|send.*|recv.*|poll|dup.?|shm_.*|memfd_.*'
harmless='.*_(free|free_context|freeContext|destroy|unref|join|lock|unlock|wait|timedwait|signal|broadcast|once|sigmask)
av_(version_info|shrink_packet|free|freep|dict_get|display_rotation_get|find_best_stream|match_list|strerror|(frame|packet)_move_ref|parser_close|parser_parse2|log_set_callback|pix_fmt_desc_get)
av.*_get_(side_data|class|name)|av_.*side_data_get|avcodec_default_get_format|avcodec_find_.*
avformat_close_input|avformat_index_get_.*|avcodec_(descriptor_get|flush_buffers)|sws_getCoefficients|sws_setColorspaceDetails
av_bsf_.*|av_buffer_alloc|av_frame_(apply_cropping|clone)|av_packet_ref|avcodec_parameters_copy|recvmsg
fopen|getline|fclose|waitpid|waitid|mkdir|dnnl_(version|get_effective_cpu_isa|memory_desc_get_size|primitive_desc_query(_md)?|primitive_get_primitive_desc)|dnnl_.*_cpu'
whole() { printf '%s\n' "$1" | sed 's/.*/^(&)$/'; }
calls=$(nm -u "$@" 2> /dev/null | awk '/\.o:$/ { skip = /^(sandbox|landlock|libraries|make_clip|gpu_process|nvdec|nvstream)\.c/ } !skip' | sed -n 's/^ *U \([^@]*\).*/\1/p' | sort -u |
    grep -E "$(whole "$can_fail")" | grep -vE "$(whole "$harmless")")
status=0
for call in $calls; do
    grep -q "^[A-Z]*($call[,)]" "$table" || { echo "$call is not in $table" && status=1; }
done
exit $status
