/* SPDX-License-Identifier: MIT */
/* The decoder program. */
#include "binding.h"

namespace qvpy
{

/* One decoder serves a process, whose jobs may outlive this object. */
class Decoder
{
  public:
    explicit Decoder(nb::bytes program) : owner(getpid())
    {
        qv_error err = {};
        qv_decoder *made = nullptr;
        check(qv_decoder_start(text_of(program, "path").c_str(), &made, &err), err);
        decoder.reset(made, [of = owner](qv_decoder *d) {
            if (of == getpid())
                qv_decoder_stop(&d);
        });
    }
    std::shared_ptr<qv_decoder>
    get() const
    {
        if (owner != getpid())
            fail(QV_ESTATE, "the decoder was started by another process than this one");
        return decoder;
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
bind_decoder(nb::module_ &m)
{
    nb::class_<Decoder>(m, "Decoder").def(nb::init<nb::bytes>());
}

} // namespace qvpy
