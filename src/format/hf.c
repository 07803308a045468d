#include "format/modelfile_impl.h"

#include "base/mem.h"
#include "base/reader.h"

/* Not landed yet: refuses, so that GGUF can be used meanwhile. */
lt_status lt__safetensors_open(lt_modelfile *f, const char *path, bool meta, lt_err *err)
{
    (void)f, (void)meta;
    return lt__fail(err, LT_E_UNSUPPORTED, "%s: safetensors are not read yet", lt__path_tail(path));
}
lt_status lt__safetensors_open_index(lt_modelfile *f, const char *path, lt_err *err) { return lt__safetensors_open(f, path, false, err); }
lt_status lt__hf_open(lt_modelfile *f, const char *dir, lt_err *err) { return lt__safetensors_open(f, dir, false, err); }
bool lt__hf_is_folder(const char *dir) { (void)dir; return false; }
