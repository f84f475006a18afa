// The upper tail of the normal distribution, P(T > t), as polynomials around multiples of 3/16.
#pragma once

namespace weft::kernels {

/// P(T > t) = sum_k kNormalTail[6 - k][i] s^k for |s| <= 3/32, t = 3 i / 16 + s: the polynomials of
/// least relative error (Lawson's weights, Chebyshev nodes, 40 digits), which is 0.5 units of
/// f32's roundoff at most, 1.4 with coefficients rounded to floats.
alignas(64) inline constexpr float kNormalTail[7][32] = {
    {0x1.1708b6p-18f,  0x1.882cc8p-10f,  0x1.592bcap-9f,   0x1.9f745ep-9f,   0x1.8d712ep-9f,
     0x1.315cbp-9f,    0x1.54bb24p-10f,  0x1.d527bep-13f,  -0x1.59802ep-11f, -0x1.3c7b9ap-10f,
     -0x1.6d601ap-10f, -0x1.5041fep-10f, -0x1.02f4bcp-10f, -0x1.49457cp-11f, -0x1.36604cp-12f,
     -0x1.75dccp-15f,  0x1.d233c4p-14f,  0x1.7ea53ep-13f,  0x1.959a4cp-13f,  0x1.63cde2p-13f,
     0x1.14adaep-13f,  0x1.88e236p-14f,  0x1.02b916p-14f,  0x1.3f0cd6p-15f,  0x1.72af7cp-16f,
     0x1.9787fep-17f,  0x1.a94f3ap-18f,  0x1.a65cbep-19f,  0x1.8fdeb2p-20f,  0x1.69758ep-21f,
     0x1.38593ap-22f,  0x1.02492ap-23f},  // s^6
    {-0x1.463744p-7f,  -0x1.2a2584p-7f,  -0x1.b93f1ep-8f,  -0x1.beb53ep-9f,  0x1.2955c4p-13f,
     0x1.a40f94p-9f,   0x1.595cf4p-8f,   0x1.91707cp-8f,   0x1.800df6p-8f,   0x1.3946d2p-8f,
     0x1.aec986p-9f,   0x1.cca572p-10f,  0x1.e88004p-12f,  -0x1.d58ca6p-12f, -0x1.fa20a4p-11f,
     -0x1.2db9b8p-10f, -0x1.221b58p-10f, -0x1.ea7f7cp-11f, -0x1.796c96p-11f, -0x1.0d0c12p-11f,
     -0x1.670cap-12f,  -0x1.c38202p-13f, -0x1.0cbaeap-13f, -0x1.2fceecp-14f, -0x1.47022cp-15f,
     -0x1.4fc1bap-16f, -0x1.4958fep-17f, -0x1.3503f2p-18f, -0x1.159ccap-19f, -0x1.ddff74p-21f,
     -0x1.8aa12ap-22f, -0x1.389ffp-23f},  // s^5
    {-0x1.d6cb6ap-25f, -0x1.2985acp-7f, -0x1.1032acp-6f, -0x1.5ef45p-6f,  -0x1.77d188p-6f,
     -0x1.5cf9fcp-6f,  -0x1.1a37e6p-6f, -0x1.81e85ap-7f, -0x1.8de01ap-8f, -0x1.0dbcfp-10f,
     0x1.6b307cp-9f,   0x1.4fd2cp-8f,   0x1.9233b8p-8f,  0x1.906b72p-8f,  0x1.62d98cp-8f,
     0x1.203384p-8f,   0x1.b3aac4p-9f,  0x1.3543ecp-9f,  0x1.9ed33ep-10f, 0x1.07ec9ep-10f,
     0x1.3f8a3ap-11f,  0x1.70edaep-12f, 0x1.96e486p-13f, 0x1.ad4576p-14f, 0x1.b1b026p-15f,
     0x1.a3f656p-16f,  0x1.86157ap-17f, 0x1.5bc628p-18f, 0x1.29c208p-19f, 0x1.e9e126p-21f,
     0x1.8356acp-22f,  0x1.267a22p-23f},  // s^4
    {0x1.105822p-4f,   0x1.0230e8p-4f,   0x1.b44f42p-5f,   0x1.3ddceep-5f,   0x1.67c25cp-6f,
     0x1.5406b2p-8f,   -0x1.335c4cp-7f,  -0x1.4cb09p-6f,   -0x1.ba160cp-6f,  -0x1.e4a978p-6f,
     -0x1.d8840ep-6f,  -0x1.a68848p-6f,  -0x1.60194cp-6f,  -0x1.13f99cp-6f,  -0x1.99588cp-7f,
     -0x1.206c0ep-7f,  -0x1.8342dep-8f,  -0x1.f080cap-9f,  -0x1.306a82p-9f,  -0x1.657cdap-10f,
     -0x1.92755p-11f,  -0x1.b2b8c4p-12f, -0x1.c2da0cp-13f, -0x1.c13338p-14f, -0x1.ae2c1cp-15f,
     -0x1.8c1df4p-16f, -0x1.5edd52p-17f, -0x1.2b09bep-18f, -0x1.ea9b3cp-20f, -0x1.837098p-21f,
     -0x1.269eb6p-22f, -0x1.af89cp-24f},  // s^3
    {0x1.8d471cp-33f, 0x1.2d0c8cp-5f,  0x1.1d95bp-4f,   0x1.885578p-4f,  0x1.ce8c0ep-4f,
     0x1.ed94f8p-4f,  0x1.e829eep-4f,  0x1.c52dbp-4f,   0x1.8de0c8p-4f,  0x1.4bfd12p-4f,
     0x1.0823aap-4f,  0x1.91bc3ap-5f,  0x1.24833cp-5f,  0x1.986624p-6f,  0x1.119eecp-6f,
     0x1.602bd8p-7f,  0x1.b3ab1ep-8f,  0x1.0327cap-8f,  0x1.28a25p-9f,   0x1.46caacp-10f,
     0x1.5a9d9cp-11f, 0x1.620dfp-12f,  0x1.5c5e2p-13f,  0x1.4a3f5p-14f,  0x1.2daed6p-15f,
     0x1.099b62p-16f, 0x1.c2cf9ep-18f, 0x1.70d09ep-19f, 0x1.22e8dep-20f, 0x1.ba8084p-22f,
     0x1.44883p-23f,  0x1.cb11e2p-25f},  // s^2
    {-0x1.988454p-2f,  -0x1.91661p-2f,   -0x1.7cc794p-2f,  -0x1.5cbdcp-2f,   -0x1.345d5ep-2f,
     -0x1.073e62p-2f,  -0x1.b1ec62p-3f,  -0x1.594762p-3f,  -0x1.094086p-3f,  -0x1.8977c8p-4f,
     -0x1.19bfa4p-4f,  -0x1.858fbcp-5f,  -0x1.0402ep-5f,   -0x1.4f18bcp-6f,  -0x1.a0f22cp-7f,
     -0x1.f4dda6p-8f,  -0x1.227214p-8f,  -0x1.4536f2p-9f,  -0x1.5f90f6p-10f, -0x1.6eec8cp-11f,
     -0x1.71b92ep-12f, -0x1.67aca4p-13f, -0x1.51cfa6p-14f, -0x1.3250fep-15f, -0x1.0c29a6p-16f,
     -0x1.c54d7ep-18f, -0x1.71e57ap-19f, -0x1.2368d6p-20f, -0x1.bb4a9p-22f,  -0x1.4584e4p-23f,
     -0x1.cd8eaap-25f, -0x1.3beb6cp-26f},  // s^1
    {0x1.p-1f,        0x1.b3d97cp-2f,  0x1.6a527ap-2f,  0x1.25c5e4p-2f,  0x1.d022p-3f,
     0x1.64dd8ep-3f,  0x1.0ad7dap-3f,  0x1.83cab6p-4f,  0x1.11a46ep-4f,  0x1.76d04ep-5f,
     0x1.f20394p-6f,  0x1.40cccep-6f,  0x1.90925p-7f,   0x1.e49cecp-8f,  0x1.1bee6cp-8f,
     0x1.42297ap-9f,  0x1.61de2p-10f,  0x1.7832e6p-11f, 0x1.8301bep-12f, 0x1.812f0ep-13f,
     0x1.72d956p-14f, 0x1.595676p-15f, 0x1.36feaep-16f, 0x1.0ed0e2p-17f, 0x1.c80728p-19f,
     0x1.733238p-20f, 0x1.24149ap-21f, 0x1.bc4ed8p-23f, 0x1.46a16cp-24f, 0x1.d02498p-26f,
     0x1.3eb346p-27f, 0x1.a6f212p-29f},  // s^0
};

}  // namespace weft::kernels
