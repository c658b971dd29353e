/* SPDX-License-Identifier: MIT */
/*
 * Stands in for the functions of CUDA's libraries that the backend calls and whose results tests do
 * not need: they all report success. They are declared without headers, as their parameters do not
 * matter.
 */

void fake_cuda_called(const char *name); /* test_cuda_contexts.c */

#define FAKE(name)                                                                                 \
    int name();                                                                                    \
    int name()                                                                                     \
    {                                                                                              \
        fake_cuda_called(#name);                                                                   \
        return 0;                                                                                  \
    }
FAKE(cublasLtDestroy)
FAKE(cublasLtMatmul)
FAKE(cublasLtMatmulAlgoCheck)
FAKE(cublasLtMatmulAlgoConfigGetAttribute)
FAKE(cublasLtMatmulAlgoConfigSetAttribute)
FAKE(cublasLtMatmulAlgoGetHeuristic)
FAKE(cublasLtMatmulDescCreate)
FAKE(cublasLtMatmulDescDestroy)
FAKE(cublasLtMatmulDescSetAttribute)
FAKE(cublasLtMatmulPreferenceCreate)
FAKE(cublasLtMatmulPreferenceDestroy)
FAKE(cublasLtMatmulPreferenceSetAttribute)
FAKE(cublasLtMatrixLayoutCreate)
FAKE(cublasLtMatrixLayoutDestroy)
FAKE(cublasLtMatrixLayoutSetAttribute)
FAKE(cudaEventDestroy)
FAKE(cudaEventElapsedTime)
FAKE(cudaEventQuery)
FAKE(cudaEventRecord)
FAKE(cudaEventRecordWithFlags)
FAKE(cudaEventSynchronize)
FAKE(cudaFreeAsync)
FAKE(cudaFuncSetAttribute)
FAKE(cudaGraphDestroy)
FAKE(cudaGraphExecDestroy)
FAKE(cudaGraphLaunch)
FAKE(cudaGraphUpload)
FAKE(cudaLaunchKernelExC)
FAKE(cudaMallocFromPoolAsync)
FAKE(cudaMemGetInfo)
FAKE(cudaMemPoolCreate)
FAKE(cudaMemPoolDestroy)
FAKE(cudaMemPoolSetAttribute)
FAKE(cudaMemcpyAsync)
FAKE(cudaMemsetAsync)
FAKE(cudaStreamBeginCapture)
FAKE(cudaStreamDestroy)
FAKE(cudaStreamEndCapture)
FAKE(cudaStreamSynchronize)
FAKE(cudaStreamWaitEvent)
FAKE(cudnnBackendCreateDescriptor)
FAKE(cudnnBackendDestroyDescriptor)
FAKE(cudnnBackendExecute)
FAKE(cudnnBackendFinalize)
FAKE(cudnnBackendGetAttribute)
FAKE(cudnnBackendSetAttribute)
FAKE(cudnnDestroy)
FAKE(cudnnSetStream)
FAKE(__cudaLaunchKernel)

/* These belong to no device. */
#define QUIET(name)                                                                                \
    int name();                                                                                    \
    int name()                                                                                     \
    {                                                                                              \
        return 0;                                                                                  \
    }
QUIET(cudaDriverGetVersion)
QUIET(cudaGetLastError)
QUIET(cudaPeekAtLastError)
QUIET(cudaRuntimeGetVersion)
QUIET(cudnnGetLastErrorString)
QUIET(__cudaGetKernel)
QUIET(__cudaPopCallConfiguration)
QUIET(__cudaRegisterFatBinaryEnd)
QUIET(__cudaRegisterFunction)
QUIET(__cudaUnregisterFatBinary)

#define TEXT(name)                                                                                 \
    const char *name();                                                                            \
    const char *name()                                                                             \
    {                                                                                              \
        return #name;                                                                              \
    }
TEXT(cublasLtGetStatusString)
TEXT(cudaGetErrorName)
TEXT(cudaGetErrorString)
TEXT(cudnnGetErrorString)
TEXT(__cudaRegisterFatBinary)
