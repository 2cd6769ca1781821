// Windows of images: `items.crops.windows`. What lies outside repeats the pixels of the edge.
#pragma once
#include "base.h"

FRB_BEGIN

// Images [n, H, W, k], whose pixels have so many bytes, and windows [n, rows, columns, k].
FRB_ENTRY void windows(int64_t pixel, Array<const char, 4> images, const int32_t* top, const int32_t* left,
                       Array<char, 4> target_images) {
  const int64_t count = images.shape[0], height = images.shape[1], width = images.shape[2];
  const int64_t rows = target_images.shape[1], columns = target_images.shape[2];
  for (int64_t k = 0; k < count; ++k) {
    const int64_t first = left[k];
    const int64_t begin = least(most<int64_t>(-first, 0), columns);  // columns before the image; from `end` on those behind
    const int64_t end = most(least(width - first, columns), begin);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = least(most<int64_t>(top[k] + i, 0), height - 1);
      const char* source = images.at + (k * height + row) * width * pixel;
      char* target = target_images.at + (k * rows + i) * columns * pixel;
      if (end > begin) memcpy(target + begin * pixel, source + (first + begin) * pixel, size_t((end - begin) * pixel));
      for (int64_t j = 0; j < begin; ++j) copy(target + j * pixel, source, pixel);
      for (int64_t j = end; j < columns; ++j) copy(target + j * pixel, source + (width - 1) * pixel, pixel);
    }
  }
}

FRB_END
