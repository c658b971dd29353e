/* SPDX-License-Identifier: MIT */
/* Exchanges arrays with Python, by DLPack and buffers. */
#include "binding.h"

namespace qvpy
{

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
    fail(QV_EINVAL, "no tokens are in %s", qv_dtype_name(dtype));
}

nb::ndarray<>
take_array(nb::handle object, const char *what)
{
    nb::ndarray<nb::ro> seen;
    if (!nb::ndarray_check(object))
        fail(QV_EINVAL, "%s: a %s is no array; give one with DLPack or a buffer (numpy, torch)",
             what, nb::type_name(object.type()).c_str());
    /* read-only arrays are accepted too: nothing here writes to its input */
    if (!nb::try_cast(object, seen))
        fail(QV_EINVAL, "%s: this array cannot be shared (%s); is it of a dtype that DLPack lacks?",
             what, nb::type_name(object.type()).c_str());
    return nb::ndarray<>(seen);
}

void
must_be_contiguous(const nb::ndarray<> &array, const char *what)
{
    int64_t expected = 1;
    for (size_t i = array.size() ? array.ndim() : 0; i-- > 0;) {
        if (array.shape(i) != 1 && array.stride(i) != expected)
            fail(QV_EINVAL,
                 "%s: not contiguous: axis %zu has stride %lld and not %lld; make a "
                 "contiguous copy",
                 what, i, (long long)array.stride(i), (long long)expected);
        expected *= (int64_t)array.shape(i);
    }
}

} // namespace qvpy
