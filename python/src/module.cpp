/* SPDX-License-Identifier: MIT */
#include "binding.h"

namespace qvpy
{

/* Raises qwenvit.Error(words), with .status set. */
static void
raise(const Failure &failure, nb::handle type)
{
    const nb::object words = as_text(failure.text.c_str());
    PyObject *error = PyObject_CallFunctionObjArgs(type.ptr(), words.ptr(), nullptr);
    PyObject *status = error ? PyUnicode_FromString(qv_status_name(failure.status)) : nullptr;
    if (status && !PyObject_SetAttrString(error, "status", status))
        PyErr_SetObject(type.ptr(), error);
    Py_XDECREF(status);
    Py_XDECREF(error);
}

} // namespace qvpy

/* nanobind's entry, in front of which PyInit__core stands. */
NB_MODULE(core, m)
{
    using namespace qvpy;
    wait_at_end();
    nb::set_leak_warnings(false); /* a model in a global lives until the process ends */
    static PyObject *type = PyErr_NewExceptionWithDoc(
        "qwenvit.Error",
        "What failed, in words: the argument, the value found, and what would be right.\n\n"
        "status: a name as \"QV_EINVAL\" (see qwenvit.h). key: of encode(), which source; index: "
        "its place among them.",
        nullptr, nullptr);
    if (!type)
        throw nb::python_error();
    m.attr("Error") = nb::handle(type);
    PyObject_SetAttrString(type, "key", Py_None);
    PyObject_SetAttrString(type, "index", Py_None);
    PyObject_SetAttrString(type, "status", Py_None);
    nb::register_exception_translator([](const std::exception_ptr &p, void *) {
        try {
            std::rethrow_exception(p);
        } catch (const Failure &failure) {
            raise(failure, type);
        }
    });
    m.attr("version") = qv_version();
#ifdef QV_CUDA_MAJOR
    m.attr("cuda_major") = QV_CUDA_MAJOR;
#else
    m.attr("cuda_major") = nb::none();
#endif
    bind_tokens(m);
    bind_model(m);
    bind_frames(m);
    bind_decoder(m);
    bind_job(m);
    bind_options(m);
    bind_cache(m);
    bind_cache_reader(m);
}

/* Types and exceptions are kept in variables of the library, so they can belong to one interpreter
 * alone: a second import would replace them under the first one's feet. */
extern "C" NB_EXPORT PyObject *
PyInit__core(void)
{
    static PyInterpreterState *const first = PyInterpreterState_Get();
    if (PyInterpreterState_Get() == first)
        return PyInit_core();
    PyErr_SetString(PyExc_ImportError,
                    "qwenvit was imported by another interpreter of this process; it works in one "
                    "interpreter, so import it there or in a process of its own");
    return nullptr;
}
