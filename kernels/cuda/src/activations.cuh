// Activations of one float: the functions of UNARY, and the gates of GLU.
//
// `op` is UnaryOp or GluOp of graph/op.py. A constant leaves one branch; with a parameter, all
// threads take the same one. Products are f32(gate(op, a) * b) everywhere: a gate fused into a
// matrix product has the bits of a GLU node.
#pragma once
#include "device.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// x / 2 * (1 + tanh(y)), y = sqrt(2 / pi) (x + 0.044715 x^3), as x * sigmoid(2 y): nothing cancels.
DEVICE float gelu(float x) {
    return x / (1.0f + expf(-1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f)));
}

DEVICE float gelu_quick(float x) { return x / (1.0f + expf(-1.702f * x)); }

// x / 2 * erfc(-x / sqrt 2), within a few units in the last place, near 0 too.
//
// With z = |x| / sqrt 2 and t = 1 / (1 + z / 2): erfc(z) = t e^(p(t) - z^2). p is a Chebyshev fit
// for z < 15, with an error of at most 7e-8. Above 15, erfc is 0 in float32.
DEVICE float gelu_erf(float x) {
    float a = fminf(21.0f, fabsf(x));
    float t = 1.0f / fmaf(0.35355339059f, a, 1.0f);
    float p = fmaf(0.167381003f, t, -0.801325262f);
    p = fmaf(p, t, 1.43554544f);
    p = fmaf(p, t, -1.06009936f);
    p = fmaf(p, t, 0.213782743f);
    p = fmaf(p, t, -0.150773004f);
    p = fmaf(p, t, 0.0846820921f);
    p = fmaf(p, t, 0.376550198f);
    p = fmaf(p, t, 0.999756813f);
    p = fmaf(p, t, -1.26550055f);
    // z^2 = a^2 / 2 with all its digits: the exponential would magnify a rounding error
    float square = a * a;
    float rest = fmaf(a, a, -square);
    float erfc = t * expf(-0.5f * square) * expf(fmaf(rest, -0.5f, p));
    return 0.5f * x * (x < 0.0f ? erfc : 2.0f - erfc);
}

DEVICE float relu(float x) { return x > 0.0f ? x : 0.0f; }  // NaN becomes 0 too

DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// s: alpha_n, alpha_p, beta and eps of ops.xielu.
DEVICE float xielu(float x, const float (&s)[4]) {
    if (x > 0.0f) return (s[1] * x + s[2]) * x;
    return (expm1f(fminf(x, s[3])) - x) * s[0] + s[2] * x;
}

DEVICE float unary(int op, float x, const float (&s)[4]) {
    switch (op) {
        case 0: return silu(x);
        case 1: return gelu(x);
        case 2: return gelu_quick(x);
        case 3: return gelu_erf(x);
        case 4: return relu(x);
        case 5: return sigmoid(x);
        case 6: return tanhf(x);
        case 7: return expf(x);
        case 8: return -x;
        case 9: return fabsf(x);
        case 10: return softplus(x);
        default: return xielu(x, s);
    }
}

DEVICE float gate(int op, float x) {
    switch (op) {
        case 0: return relu(x);
        case 1: return gelu(x);
        case 2: return silu(x);
        case 3: return gelu_erf(x);
        default: return gelu_quick(x);
    }
}

// g * sigmoid(alpha * g) * (u + 1); NaN compares false and stays.
DEVICE float swiglu_oai(float a, float b, float alpha, float limit) {
    const float g = limit < a ? limit : a;
    const float u = b < -limit ? -limit : b > limit ? limit : b;
    return g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
}

DEVICE float glu(int op, float a, float b, float alpha, float limit) {
    return op == 5 ? swiglu_oai(a, b, alpha, limit) : gate(op, a) * b;
}

// The GLU whose op, alpha and limit are the parameters from `first` on.
DEVICE float glu(const Params &p, int first, float a, float b) {
    return glu(static_cast<int>(p.param[first].i), a, b, static_cast<float>(p.param[first + 1].f),
               static_cast<float>(p.param[first + 2].f));
}
