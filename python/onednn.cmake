# SPDX-License-Identifier: MIT
# Sets PYPI_DNNL_DIR to the folder of PyPI's oneDNN if it was installed for this build.
execute_process(COMMAND ${Python_EXECUTABLE} -c "
from importlib.metadata import PackageNotFoundError, files
try:
    for file in files('onednn-devel-cpu-gomp'):
        if file.match('include/oneapi/dnnl/dnnl.h'):
            print(file.locate().resolve().parents[3])
except PackageNotFoundError:
    pass
" OUTPUT_VARIABLE PYPI_DNNL_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
