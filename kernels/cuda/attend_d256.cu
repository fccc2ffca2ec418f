#include "kernels/cuda/attend_kernel.cuh"

namespace attend {

kernel_entry kernel_for_256(int nt, int mode)
{
    return kernel_for<256>(nt, mode);
}

} // namespace attend
