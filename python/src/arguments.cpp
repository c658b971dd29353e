/* SPDX-License-Identifier: MIT */
/* Passes arguments from Python to C: arrays, through DLPack and buffers; options of clips, by the
 * rules of clips/options.inc; and the decoder program. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "binding.h"
#include "image_kind.h"

namespace qvpy
{

/* ---- arrays ---------------------------------------------------------------------------------- */

nb::object
array_of(void *data, std::vector<size_t> shape, nb::dlpack::dtype dtype, nb::handle owner)
{
    nb::ndarray<nb::array_api> array(data, shape.size(), shape.data(), owner, nullptr, dtype);
    return nb::cast(array);
}

nb::dlpack::dtype
array_dtype(qv_dtype dtype, bool bits)
{
    using nb::dlpack::dtype_code;
    switch (dtype) {
    case QV_F32: return nb::dtype<float>();
    case QV_F16: return { (uint8_t)dtype_code::Float, 16, 1 };
    case QV_BF16:
        return bits ? nb::dtype<uint16_t>()
                    : nb::dlpack::dtype{ (uint8_t)dtype_code::Bfloat, 16, 1 };
    case QV_U8:
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    fail(QV_EINVAL, "tokens cannot be %s", qv_dtype_name(dtype));
}

nb::ndarray<>
take_array(nb::handle object, const char *what)
{
    nb::ndarray<nb::ro> seen;
    if (!nb::ndarray_check(object))
        fail(QV_EINVAL,
             "%s is of type %s; it must be an array with DLPack or a buffer (numpy, torch)", what,
             nb::type_name(object.type()).c_str());
    /* read-only arrays are accepted too: nothing here writes to its input */
    if (!nb::try_cast(object, seen))
        fail(QV_EINVAL, "%s: cannot share this array (%s); does DLPack lack its dtype?", what,
             nb::type_name(object.type()).c_str());
    return nb::ndarray<>(seen);
}

void
must_be_contiguous(const nb::ndarray<> &array, const char *what)
{
    int64_t expected = 1;
    for (size_t i = array.size() ? array.ndim() : 0; i-- > 0;) {
        if (array.shape(i) != 1 && array.stride(i) != expected)
            fail(QV_EINVAL,
                 "%s: not contiguous: axis %zu has stride %lld instead of %lld; make a "
                 "contiguous copy",
                 what, i, (long long)array.stride(i), (long long)expected);
        expected *= (int64_t)array.shape(i);
    }
}

/* ---- options of clips ------------------------------------------------------------------------ */

/* Converts a value for the rules of options; `text` owns its string. Strings and paths are encoded
 * as file names. */
static qv_value
value_of(nb::handle value, std::string *text)
{
    qv_value v = {};
    PyObject *o = value.ptr();
    if (PyBool_Check(o)) {
        v.type = QV_VALUE_FLAG;
        v.integer = o == Py_True;
        return v;
    }
    if (PyIndex_Check(o)) {
        int overflow = 0;
        const nb::object whole = nb::steal(PyNumber_Index(o));
        v.integer = whole.is_valid() ? PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow) : 0;
        v.type = !whole.is_valid() || overflow ? QV_VALUE_OTHER : QV_VALUE_INTEGER;
    } else if (PyNumber_Check(o)) {
        v.real = PyFloat_AsDouble(o);
        v.type = PyErr_Occurred() ? QV_VALUE_OTHER : QV_VALUE_REAL;
    } else if (nb::object bytes = nb::steal(PyOS_FSPath(o)); bytes.is_valid()) {
        if (PyUnicode_Check(bytes.ptr()))
            bytes = nb::steal(PyUnicode_EncodeFSDefault(bytes.ptr()));
        if (bytes.is_valid()) {
            *text = text_of(nb::cast<nb::bytes>(bytes));
            if (text->find('\0') != std::string::npos)
                text->clear();
            v.type = QV_VALUE_TEXT;
            v.text = text->c_str();
        }
    }
    PyErr_Clear();
    return v;
}

static std::string
shown(nb::handle value)
{
    return nb::cast<std::string>(nb::module_::import_("qwenvit._check").attr("shown")(value));
}

void
take_clip_options(nb::dict options, qv_clip_options *o, std::string *path, std::string *key)
{
    for (auto [field, value] : options) {
        std::string other;
        const std::string name = nb::cast<std::string>(nb::str(field));
        std::string *own = path && name == "path" ? path : key && name == "key" ? key : nullptr;
        const qv_value v = value_of(value, own ? own : &other);
        const char *wanted = !own ? qv_clip_options_set(o, name.c_str(), path != nullptr, &v)
                             : own->empty() ? "a non-empty string"
                                            : nullptr;
        if (wanted && !*wanted)
            fail(QV_EINVAL, "unknown %s %.80s", path ? "field" : "option",
                 path ? shown(field).c_str() : name.c_str());
        if (wanted)
            fail(QV_EINVAL, "%s is %.80s; it must be %s", name.c_str(), shown(value).c_str(),
                 wanted);
    }
}

/* ---- the decoder program --------------------------------------------------------------------- */

/* A process has one decoder, and its jobs may outlive this object. */
class Decoder
{
  public:
    explicit Decoder(nb::bytes program) : owner(getpid())
    {
        qv_decoder *made = nullptr;
        checked(qv_decoder_start, program.c_str(), &made);
        decoder.reset(made, [of = owner](qv_decoder *d) {
            if (of == getpid())
                qv_decoder_stop(&d);
        });
    }
    std::shared_ptr<qv_decoder>
    get() const
    {
        if (owner != getpid())
            fail(QV_ESTATE, "the decoder was started by another process");
        return decoder;
    }
    /* Returns the version of FFmpeg; "" if it is unknown. */
    std::string
    ffmpeg() const
    {
        const auto held = get();
        const Released released;
        char version[QV_FFMPEG_BYTES] = "";
        qv_decoder_ffmpeg(held.get(), version, nullptr);
        return version;
    }

  private:
    std::shared_ptr<qv_decoder> decoder;
    pid_t owner;
};

std::shared_ptr<qv_decoder>
decoder_of(nb::handle decoder)
{
    return decoder.is_none() ? nullptr : nb::cast<Decoder *>(decoder)->get();
}

void
bind_options(nb::module_ &m)
{
    nb::dict names; /* a row's fields, and the options of encode() that they set */
    QVM_EACH_OPTION (p)
        if (p->row)
            names[p->row] = p->name;
    m.attr("ROW_OPTIONS") = names;
    m.def("check_options", [](nb::dict options) {
        qv_clip_options o = {};
        take_clip_options(options, &o);
    });
    m.attr("HEAD") = (int)QV_HEAD;
    m.def("image_kind", [](nb::bytes head) -> std::optional<std::tuple<const char *, bool>> {
        const auto *kind = qv_find_image_kind((const uint8_t *)head.c_str(), head.size());
        return kind ? std::optional(std::tuple(kind->name, kind->may_move)) : std::nullopt;
    });
    nb::class_<Decoder>(m, "Decoder").def(nb::init<nb::bytes>()).def("ffmpeg", &Decoder::ffmpeg);
}

} // namespace qvpy
