/* SPDX-License-Identifier: MIT */
/* The extension module, qwenvit._core, and the errors that it raises. */
#include "binding.h"

namespace qvpy
{

/* Turns a Failure into qwenvit.Error. */
static void
translate(const std::exception_ptr &p, void *)
{
    try {
        std::rethrow_exception(p);
    } catch (const Failure &failure) {
        const nb::object make = nb::module_::import_("qwenvit._error").attr("error");
        const nb::object error =
            make(qv_status_name(failure.status), as_text(failure.text.c_str()));
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    }
}

} // namespace qvpy

/* nanobind's entry; PyInit__core calls it. */
NB_MODULE(core, m)
{
    using namespace qvpy;
    wait_at_end();
    nb::set_leak_warnings(false); /* a model in a global variable lives until the process ends */
    nb::register_exception_translator(translate);
    m.attr("version") = qv_version();
#ifdef QV_CUDA_MAJOR
    m.attr("cuda_major") = QV_CUDA_MAJOR;
#else
    m.attr("cuda_major") = nb::none();
#endif
    bind_tokens(m);
    bind_model(m);
    bind_frames(m);
    bind_job(m);
    bind_options(m);
    bind_cache(m);
    bind_cache_reader(m);
}

/* Types and exceptions are in static variables of the library, so they can belong to only one
 * interpreter: a second import would replace them while the first is using them. */
extern "C" NB_EXPORT PyObject *
PyInit__core(void)
{
    static PyInterpreterState *const first = PyInterpreterState_Get();
    if (PyInterpreterState_Get() == first)
        return PyInit_core();
    PyErr_SetString(
        PyExc_ImportError,
        "another interpreter of this process has imported qwenvit, which works in only one "
        "interpreter: import it there or in a separate process");
    return nullptr;
}
