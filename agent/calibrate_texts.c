/* Texts for calibration, written for it. */
#include "agent/calibrate_internal.h"

const char *const calibrate_texts[CALIBRATE_TEXTS] = {"", "", ""};
