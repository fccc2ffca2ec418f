/* types: names and block sizes of the stored tensor types. */
#include "kernels/kernels.h"

typedef struct type_info {
    krn_type type;
    const char *name;
    int block_elements;
    int block_bytes;
} type_info;

static const type_info types[] = {
        {KRN_F32, "F32", 1, 4},
        {KRN_F16, "F16", 1, 2},
        {KRN_BF16, "BF16", 1, 2},
        {KRN_Q4_0, "Q4_0", 32, 18},
        {KRN_Q4_1, "Q4_1", 32, 20},
        {KRN_Q5_0, "Q5_0", 32, 22},
        {KRN_Q5_1, "Q5_1", 32, 24},
        {KRN_Q8_0, "Q8_0", 32, 34},
        {KRN_Q2_K, "Q2_K", 256, 84},
        {KRN_Q3_K, "Q3_K", 256, 110},
        {KRN_Q4_K, "Q4_K", 256, 144},
        {KRN_Q5_K, "Q5_K", 256, 176},
        {KRN_Q6_K, "Q6_K", 256, 210},
        {KRN_IQ4_NL, "IQ4_NL", 32, 18},
        {KRN_IQ4_XS, "IQ4_XS", 256, 136},
};

static const type_info *find(uint32_t type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if ((uint32_t)types[i].type == type) {
            return &types[i];
        }
    }
    return NULL;
}

bool krn_type_known(uint32_t type)
{
    return find(type) != NULL;
}

const char *krn_type_name(krn_type type)
{
    const type_info *t = find((uint32_t)type);
    return t != NULL ? t->name : "unknown";
}

int krn_type_block_elements(krn_type type)
{
    const type_info *t = find((uint32_t)type);
    REQUIRE(t != NULL);
    return t->block_elements;
}

int krn_type_block_bytes(krn_type type)
{
    const type_info *t = find((uint32_t)type);
    REQUIRE(t != NULL);
    return t->block_bytes;
}
