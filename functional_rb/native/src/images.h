// Windows of images: `items.crops.windows`. What lies outside repeats the pixels of the edge.
#pragma once
#include "base.h"

FRB_BEGIN

FRB_ENTRY void windows(const char* images, const int32_t* top, const int32_t* left, char* made, int64_t count, int64_t height,
                    int64_t width, int64_t rows, int64_t columns, int64_t pixel) {
  for (int64_t k = 0; k < count; ++k) {
    const int64_t first = left[k];
    const int64_t begin = least(most<int64_t>(-first, 0), columns);  // columns before the image; from `end` on those behind
    const int64_t end = most(least(width - first, columns), begin);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = least(most<int64_t>(top[k] + i, 0), height - 1);
      const char* source = images + (k * height + row) * width * pixel;
      char* target = made + (k * rows + i) * columns * pixel;
      if (end > begin) memcpy(target + begin * pixel, source + (first + begin) * pixel, size_t((end - begin) * pixel));
      for (int64_t j = 0; j < begin; ++j) copy(target + j * pixel, source, pixel);
      for (int64_t j = end; j < columns; ++j) copy(target + j * pixel, source + (width - 1) * pixel, pixel);
    }
  }
}

FRB_END
