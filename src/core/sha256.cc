#include <openssl/evp.h>

#include <array>

#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  EK_CHECK(state_->context != nullptr);
  EK_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  EK_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::HexDigest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  EK_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1);
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * length);
  for (unsigned int i = 0; i < length; ++i) {
    text += kHex[digest[i] >> 4];
    text += kHex[digest[i] & 15];
  }
  return text;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 digest;
  digest.Update(AsBytes(bytes));
  return digest.HexDigest();
}

}  // namespace evenkeel
