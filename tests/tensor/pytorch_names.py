"""The names of PyTorch that programs use most, by the place where they are."""

NAMES = {
    "": """
        Tensor tensor no_grad cat zeros device float32 load save from_numpy stack ones float rand
        arange sum exp randn manual_seed full sqrt mean abs log max matmul where long cuda sigmoid
        linspace sin cos softmax tanh int64 bool as_tensor zeros_like ones_like eye clamp einsum
        argmax randint bmm empty pow mul cumsum unsqueeze squeeze transpose norm min topk sort
        diag nn optim autograd log_softmax sign relu is_tensor float64 float16 int32 uint8
        nonzero flatten gather multinomial unique add flip any all meshgrid argsort mm round
        chunk split dot int repeat_interleave bfloat16 randperm set_grad_enabled reshape isnan
        floor prod randn_like full_like rand_like normal std var dtype half erf logical_and cross
        numel FloatTensor LongTensor BoolTensor IntTensor DoubleTensor outer tril triu bernoulli
        inverse allclose logsumexp div sub atan2 finfo index_select roll masked_select det
        is_floating_point inference_mode equal tensordot Generator svd log2 argmin ger
        enable_grad maximum minimum broadcast_tensors isfinite isinf baddbmm addmm mv cdist
        bincount ceil logical_not logical_or empty_like Size linalg lerp hstack vstack remainder
        square log1p tan acos asin atan cosh sinh expm1 cumprod eq ne lt le gt ge scatter
        bitwise_and bitwise_or bitwise_not quantile median mode kthvalue nan_to_num permute
        swapaxes movedim narrow unbind take_along_dim concat clone detach get_default_dtype
        set_default_dtype set_printoptions is_grad_enabled iinfo short double int8 int16 pi inf
        nan utils distributions fft jit compile hub multiprocessing random backends
        get_rng_state set_rng_state seed initial_seed promote_types result_type searchsorted
        bucketize histc polar view_as_complex view_as_real complex complex64 stft istft
        hann_window trapz cov corrcoef atleast_1d block_diag cartesian_prod combinations
        triu_indices tril_indices addcmul addcdiv rsqrt reciprocal neg fmod true_divide
        floor_divide logaddexp clip absolute amax amin aminmax count_nonzero std_mean var_mean
        cummax cummin renorm t tile rot90 fliplr flipud scatter_add index_add masked_fill
        tensor_split dsplit isin isclose nansum nanmean heaviside diff func vmap
    """,
    "Tensor": """
        view size to shape item unsqueeze detach backward cpu numpy squeeze dtype permute cuda
        repeat sum mean float contiguous requires_grad device transpose data reshape grad max
        expand copy_ fill_ long t dim clone zero_ requires_grad_ type tolist flatten masked_fill
        eq normal_ exp uniform_ pow expand_as sqrt cumsum gather std abs log add_ mul_
        bool clamp new_zeros numel argmax ndim ndimension index_select T matmul sigmoid view_as
        softmax topk scatter_ min is_cuda norm masked_fill_ clamp_ narrow nelement int type_as
        unbind bmm sort chunk new_tensor any all argsort div_ add mul div sub sub_ tanh nonzero
        is_contiguous retain_grad prod unfold split new register_hook half double byte new_ones
        select new_full var index_fill_ masked_select new_empty scatter_add_ relu log_softmax
        lt gt ge le ne round floor ceil is_leaf grad_fn triu tril diag dot mm mv lerp_ exp_
        sqrt_ pow_ addcmul_ addcdiv_ relu_ squeeze_ unsqueeze_ t_ transpose_ bernoulli_ random_
        exponential_ resize_ set_ detach_ share_memory_ pin_memory is_shared stride
        storage storage_offset data_ptr element_size layout is_sparse to_sparse to_dense
        argmin median mode kthvalue cumprod cummax logsumexp repeat_interleave index_add_
        index_copy_ index_put_ scatter scatter_add scatter_reduce take take_along_dim put_ flip
        roll fmod remainder sign neg neg_ reciprocal rsqrt square sin cos tan asin acos atan
        atan2 sinh cosh erf erf_ floor_ ceil_ round_ sigmoid_ tanh_ log_ log1p log2 log10 expm1
        isnan isinf isfinite bfloat16 short char apply_ map_ inverse det cholesky svd qr
        diagonal trace outer cross addmm baddbmm unflatten movedim swapaxes ravel itemsize nbytes
        is_floating_point bitwise_and logical_and logical_not count_nonzero quantile unique
        nan_to_num clip hypot amax amin reshape_as dist mH mT real imag where index_fill
        masked_scatter_ tile bincount histc cov
    """,
    "nn": """
        Module Linear Sequential ReLU Conv2d BatchNorm2d Dropout Parameter CrossEntropyLoss
        ModuleList functional MaxPool2d init Embedding LayerNorm BatchNorm1d Sigmoid Tanh
        MSELoss LeakyReLU ConvTranspose2d AdaptiveAvgPool2d Identity GELU Softmax LSTM AvgPool2d
        DataParallel Conv1d utils BCELoss BCEWithLogitsLoss L1Loss GRU Upsample InstanceNorm2d
        GroupNorm ModuleDict ReLU6 Flatten Conv3d MultiheadAttention SiLU LogSoftmax NLLLoss PReLU
        ELU ReflectionPad2d ZeroPad2d ParameterList parallel RNN Softplus LSTMCell GRUCell Hardtanh
        SmoothL1Loss KLDivLoss PixelShuffle Dropout2d TransformerEncoder TransformerEncoderLayer
        TransformerDecoder TransformerDecoderLayer Transformer Unfold Fold AdaptiveMaxPool2d
        BatchNorm3d MaxPool1d MaxPool3d AvgPool1d AdaptiveAvgPool1d SyncBatchNorm Hardswish
        Hardsigmoid Mish SELU CELU GLU ConvTranspose1d ParameterDict ReplicationPad2d
        CosineSimilarity CosineEmbeddingLoss TripletMarginLoss MarginRankingLoss HuberLoss CTCLoss
        Bilinear RMSNorm ConstantPad2d Softmax2d AlphaDropout LocalResponseNorm EmbeddingBag
        HingeEmbeddingLoss GaussianNLLLoss PoissonNLLLoss Softmin Softsign Threshold Unflatten
        LogSigmoid InstanceNorm1d PairwiseDistance MultiLabelSoftMarginLoss
        UpsamplingBilinear2d ChannelShuffle LazyLinear
    """,
    "nn.functional": """
        relu softmax cross_entropy interpolate dropout pad log_softmax sigmoid mse_loss normalize
        one_hot nll_loss l1_loss max_pool2d avg_pool2d conv2d linear gelu
        binary_cross_entropy_with_logits adaptive_avg_pool2d binary_cross_entropy leaky_relu tanh
        softplus grid_sample kl_div embedding layer_norm smooth_l1_loss scaled_dot_product_attention
        cosine_similarity silu unfold elu logsigmoid batch_norm conv1d affine_grid upsample
        relu_ conv_transpose2d fold gumbel_softmax group_norm instance_norm hardtanh glu prelu
        selu conv3d adaptive_max_pool2d pixel_shuffle ctc_loss huber_loss cosine_embedding_loss
        triplet_margin_loss margin_ranking_loss softmin hardswish hardsigmoid mish relu6
        rms_norm multi_head_attention_forward max_pool1d avg_pool1d pairwise_distance
    """,
    "nn.init": """
        xavier_uniform_ constant_ normal_ kaiming_normal_ zeros_ ones_ uniform_ xavier_normal_
        kaiming_uniform_ trunc_normal_ orthogonal_ calculate_gain eye_
        _calculate_fan_in_and_fan_out
    """,
    "nn.utils": """
        clip_grad_norm_ clip_grad_value_ parameters_to_vector vector_to_parameters rnn
        weight_norm spectral_norm
    """,
    "optim": """
        Adam SGD Optimizer lr_scheduler AdamW RMSprop Adagrad LBFGS Adadelta Adamax NAdam RAdam
    """,
    "optim.lr_scheduler": """
        StepLR MultiStepLR CosineAnnealingLR OneCycleLR LambdaLR ExponentialLR LinearLR
        SequentialLR ReduceLROnPlateau CosineAnnealingWarmRestarts _LRScheduler LRScheduler
        CyclicLR ConstantLR PolynomialLR MultiplicativeLR
    """,
    "utils.data": """
        Dataset DataLoader TensorDataset Subset random_split ConcatDataset Sampler RandomSampler
        SequentialSampler WeightedRandomSampler BatchSampler IterableDataset distributed
        SubsetRandomSampler default_collate get_worker_info
    """,
    "cuda": """
        is_available device_count manual_seed_all synchronize empty_cache set_device amp
        manual_seed current_device memory_allocated max_memory_allocated get_device_name
        memory_reserved reset_peak_memory_stats device Event get_device_properties
        is_bf16_supported max_memory_reserved FloatTensor stream Stream
    """,
    "autograd": """
        grad Function Variable backward functional detect_anomaly set_detect_anomaly profiler
    """,
    "linalg": """
        norm inv det svd solve qr eigh cholesky pinv slogdet lstsq matrix_norm vector_norm eig
    """,
}
"""Names by place; "" is the package itself, "Tensor" are methods and attributes of tensors."""

TABLE = [(place, name) for place, names in NAMES.items() for name in names.split()]
