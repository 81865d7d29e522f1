from segmentwise import delta_rule


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    **kwargs,
):
    assert scale is None
    assert initial_state is None
    assert not kwargs
    assert (cu_seqlens is None) == (chunk_indices is None)
    return delta_rule(
        q,
        k,
        v,
        g=g,
        beta=beta,
        cu_seqlens=cu_seqlens,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )


def fused_recurrent_gated_delta_rule(q, k, v, g, beta, cu_seqlens=None):
    raise AssertionError("training decodes no tokens")
