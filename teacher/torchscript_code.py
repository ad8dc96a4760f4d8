"""What a TorchScript archive may ask for: arithmetic on tensors, by a list of the operators that it may name.

An operator is called by its name in the archive's code, which is text; no other entry calls one, but for the classes of
C++ that a pickle may name, which are refused. So a name of PyTorch's own operators that is written there and is not in
:data:`OPERATORS` ends the import: ``from_file``, which maps a file, ``save``, ``resize_``, ``set_``, ``fork`` and what
speaks to other machines among them. Names are looked for everywhere, in comments and texts too: nothing has to be
parsed as TorchScript parses it. PyTorch then reads an archive that is written anew from what was looked at.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection

NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
ENTRY = re.compile(
    r"[^/]+/(version|byteorder|data\.pkl|constants\.pkl|data/\d+|constants/\d+|\.data/(version|serialization_id)|code/.*\.py)"
)
COMPILED_CLASS = re.compile(rb"classes[.\n]")
BEYOND = {b"fork", b"wait", b"rpc_async", b"rpc_sync", b"rpc_remote", b"awaitable"}
"""Words of the language, no operators, that start threads or speak to other machines."""

_SAME_SHAPE = """
abs acos acosh add addcdiv addcmul addmm addmv angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
atan atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip
copysign cos cosh cumprod cumsum deg2rad div divide dropout elu eq erf erfc exp exp2 expm1 fill floor floor_divide
fmod frac ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish hardtanh heaviside index_add index_copy
index_fill index_put le leaky_relu lerp less less_equal log log10 log1p log2 log_sigmoid log_softmax logical_and
logical_not logical_or logical_xor logit lt masked_fill masked_scatter mish mul multiply nan_to_num ne neg negative
not_equal pow prelu rad2deg reciprocal relu relu6 remainder renorm round rrelu rsqrt rsub scatter scatter_add selu sgn
sigmoid sign silu sin sinc sinh softmax softplus softshrink softsign sqrt square squeeze sub subtract swapaxes t tan
tanh tanhshrink threshold transpose tril triu true_divide trunc unsqueeze where xlogy zero
"""
_OTHERS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d all allclose alpha_dropout amax amin
any arange argmax argmin argsort as_tensor atleast_1d atleast_2d avg_pool1d avg_pool2d batch_norm bincount bmm
broadcast_tensors broadcast_to bucketize cat cdist channel_shuffle chunk clone concat concatenate constant_pad_nd
contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d _convolution convolution copy copy_
cosine_similarity count_nonzero cross cummax cummin detach diag diag_embed diagonal diff dot einsum embedding empty
empty_like equal expand expand_as eye feature_dropout flatten flip fliplr flipud full full_like gather glu group_norm
gru gru_cell hsplit hstack im2col index index_select inner instance_norm isclose isfinite isinf isnan isneginf
isposinf kron layer_norm linear linspace logaddexp logcumsumexp logsumexp lstm lstm_cell masked_select matmul max
max_pool1d max_pool2d maximum mean median meshgrid min minimum mm movedim mv narrow native_batch_norm
native_group_norm native_layer_norm new_empty new_full new_ones new_zeros nonzero norm normalize numel one_hot ones
ones_like outer _pack_padded_sequence pad pairwise_distance permute pixel_shuffle pixel_unshuffle prod quantile ravel
reflection_pad1d reflection_pad2d repeat repeat_interleave replication_pad1d replication_pad2d reshape reshape_as
rnn_relu rnn_tanh roll rot90 scalar_tensor scaled_dot_product_attention searchsorted select selu slice sort split
split_with_sizes stack std std_mean sum take take_along_dim tensor tensor_split tensordot tile topk tril_indices
triu_indices type_as unbind unflatten unfold unfold_copy unique upsample_bicubic2d _upsample_bicubic2d_aa
upsample_bilinear2d _upsample_bilinear2d_aa _upsample_lanczos2d_aa upsample_linear1d upsample_nearest1d
upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
upsample_trilinear3d var var_mean vector_norm view view_as vsplit vstack zeros zeros_like
"""
_MORE = """
absolute addbmm addr adjoint alias aminmax argwhere bernoulli bilinear bin broadcast cbrt coalesce combinations count
cov det diagflat dist divmod dsplit dstack fabs fix fmax fmin gamma gcd gradient hypot id imag indices inverse isalpha
lcm ldexp lgamma logdet mode modf moveaxis msort name nanmean nanmedian nansum normal partition positive rand randint
randn real rev rsplit signbit swapdims title trace uniform vander vdot
"""
_LANGUAGE = """
__and__ annotate append Bool bool BoolImplicit capitalize chr clear Complex complex ComplexImplicit __contains__ cpu
cuda data degrees Delete __derive_index device dict dim double dtype element_size endswith extend factorial find Float
float FloatImplicit floordiv format get __getitem__ grad half hash __iand__ index insert Int int IntImplicit __ior__
__is__ is_autocast_cpu_enabled is_autocast_enabled is_complex is_contiguous is_cpu is_cuda is_floating_point
is_grad_enabled is_meta is_mkldnn is_nested is_quantized is_scripting is_sparse isdigit __isnot__ item items itemsize
__ixor__ join keys layout len list long lower __lshift__ lstrip ndim ndimension neg __not__ numpy_T NumToTensor __or__
ord pop popitem Print radians RaiseException range __range_length rangelist remove replace requires_grad
requires_grad_ retain_grad reverse rfind rindex __rshift__ rstrip ScalarImplicit short size _size_if_not_equal sorted
splitlines startswith str stride strip sum_to_size to tolist TupleIndex TupleUnpack type unchecked_cast
unchecked_unwrap_optional Uninitialized __upcast update upper values warn __xor__
"""
OPERATORS = frozenset(
    name.encode()
    for each in (_SAME_SHAPE + _OTHERS + _MORE + _LANGUAGE).split()
    for name in (each, f"{each}_")
)
"""Names that the code may call: numbers out of numbers, shapes, lists and texts; each in its form in place too."""


class Disallowed(ValueError):  # noqa: N818
    """The archive asks for more than arithmetic; the message says for what."""


def allowed_archive(content: bytes, operators: Collection[str]) -> bytes:
    """Return the archive anew, with what running it needs and nothing else.

    Args:
        content: a zip archive that ``torch.jit.save`` wrote.
        operators: the names of all operators that there are, without their namespace.

    Raises:
        Disallowed: it names an operator that is not in :data:`OPERATORS`, or a class of C++.
        ValueError: it is no archive of this kind.
    """
    forbidden = (BEYOND | {name.encode() for name in operators}) - OPERATORS
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        for name in before.namelist():
            if not ENTRY.fullmatch(name):
                continue
            held = before.read(name)
            if name.endswith(".py"):
                _check_code(held, forbidden)
            if name.endswith(".pkl") and COMPILED_CLASS.search(held):
                raise Disallowed("it holds an object of a class of C++ (torch.classes)")
            after.writestr(name, held)
    return out.getvalue()


def _check_code(code: bytes, forbidden: Collection[bytes]) -> None:
    found = sorted(set(NAME.findall(code)) & set(forbidden))
    if found:
        names = ", ".join(name.decode() for name in found[:3])
        raise Disallowed(f"its code names {names}, which is no arithmetic that is allowed")
