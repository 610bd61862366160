"""The public names, where they stand; `parsgd` imports each at its first use."""

from . import (
    cluster as cluster,
    comm as comm,
    compressors as compressors,
    data as data,
    models as models,
    reducers as reducers,
    report as report,
    results as results,
    scaling as scaling,
    strategies as strategies,
    traffic as traffic,
)
from .checkpoint import Checkpoints as Checkpoints
from .compressors import Compressor as Compressor, one_bit as one_bit
from .core import (
    Phase as Phase,
    Strategy as Strategy,
    TrainState as TrainState,
)
from .errors import UserError as UserError
from .placement.devices import Placement as Placement, place as place
from .progress import Progress as Progress
from .recorder import Recorder as Recorder
from .reducers import (
    all_reduce as all_reduce,
    compressed_all_reduce as compressed_all_reduce,
    ef21 as ef21,
    error_feedback as error_feedback,
)
from .strategies import (
    block_momentum as block_momentum,
    block_momentum_from_time_constant as block_momentum_from_time_constant,
    compressed_sgd as compressed_sgd,
    data_parallel as data_parallel,
    dgc_sgd as dgc_sgd,
    diloco as diloco,
    ef_sign_sgd as ef_sign_sgd,
    local_sgd as local_sgd,
    one_bit_adam as one_bit_adam,
    one_bit_sgd as one_bit_sgd,
    outer_loop as outer_loop,
    post_local_sgd as post_local_sgd,
    sign_sgd_majority as sign_sgd_majority,
    single as single,
    sync_sgd as sync_sgd,
    zero_one_adam as zero_one_adam,
)
from .tasks import (
    Batch as Batch,
    Task as Task,
    breast_cancer as breast_cancer,
    classification as classification,
    csv as csv,
    digits as digits,
    fashion_mnist as fashion_mnist,
    npz as npz,
    synthetic as synthetic,
    text as text,
)
from .train import fit as fit
from .training.observer import Observer as Observer
from .training.run import Run as Run

__version__: str
