/* SPDX-License-Identifier: MIT */
/* The decoder program. */
#include "binding.h"

namespace qvpy
{

/* One decoder serves all jobs of a process. */
class Decoder
{
  public:
    explicit Decoder(nb::bytes program) : owner(getpid())
    {
        qv_error err = {};
        check(qv_decoder_start(text_of(program, "path").c_str(), &decoder, &err), err);
    }
    ~Decoder()
    {
        if (owner == getpid())
            qv_decoder_stop(&decoder);
    }
    qv_decoder *
    get() const
    {
        if (owner != getpid())
            fail(QV_ESTATE, "the decoder was started by another process than this one");
        return decoder;
    }

  private:
    qv_decoder *decoder = nullptr;
    pid_t owner;
};

qv_decoder *
decoder_of(nb::handle decoder)
{
    return decoder.is_none() ? nullptr : nb::cast<Decoder *>(decoder)->get();
}

void
bind_decoder(nb::module_ &m)
{
    nb::class_<Decoder>(m, "Decoder").def(nb::init<nb::bytes>());
}

} // namespace qvpy
