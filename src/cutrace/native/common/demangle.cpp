// LLVM's demangler parses the names. They are printed as GNU's c++filt prints them, because golden files and users' patterns
// contain such names.
#include "common/demangle.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <memory_resource>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <llvm/Demangle/ItaniumDemangle.h>

namespace llvm::itanium_demangle {

// <discriminator> ::= _ <digit> | __ <number> _
const char* parse_discriminator(const char* first, const char* last) {
  auto digit = [&](const char* at) { return at < last && *at >= '0' && *at <= '9'; };
  if (last - first < 2 || first[0] != '_') return first;
  if (first[1] != '_') return digit(first + 1) ? first + 2 : first;
  const char* at = first + 2;
  while (digit(at)) ++at;
  return at > first + 2 && at < last && *at == '_' ? at + 1 : first;
}

}  // namespace llvm::itanium_demangle

namespace cutrace {
namespace {

using namespace llvm::itanium_demangle;

constexpr std::size_t kMostName = 16 << 10;
// Parts of a name may refer to earlier parts, so the output may be exponentially larger than the name. Names of real libraries
// expand to ten times their size.
constexpr std::size_t kLeastText = 4096, kTimes = 64;
constexpr std::size_t kMostMemory = 16 << 20;
constexpr std::size_t kMostDepth = 2048;

class Arena {
 public:
  template <typename T, typename... Args>
  Node* makeNode(Args&&... args) {
    return new (allocate(sizeof(T))) T(std::forward<Args>(args)...);
  }
  void* allocateNodeArray(std::size_t count) { return allocate(sizeof(Node*) * count); }
  void* allocate(std::size_t size) {
    used_ += size;
    return memory_.allocate(size);
  }
  std::size_t used() const { return used_; }

 private:
  std::pmr::monotonic_buffer_resource memory_;
  std::size_t used_ = 0;
};

// Returns 1 for "", 2 for "0", 3 for "1": the ABI omits the first number.
std::size_t ordinal(std::string_view number) {
  std::size_t n = 0;
  if (number.empty()) return 1;
  std::from_chars(number.data(), number.data() + number.size(), n);
  return n + 2;
}

// A parameter of a template. g++ shares parameters between functions by substitution, so the value of a parameter depends
// on the function that is being printed.
struct TemplateParam final : Node {
  std::size_t index;

  explicit TemplateParam(std::size_t i)
      : Node(KForwardTemplateReference, Cache::Unknown, Cache::Unknown, Cache::Unknown), index(i) {}
  bool has(OutputBuffer& out, bool (Node::*what)(OutputBuffer&) const) const;
  bool hasRHSComponentSlow(OutputBuffer& out) const override { return has(out, &Node::hasRHSComponent); }
  bool hasArraySlow(OutputBuffer& out) const override { return has(out, &Node::hasArray); }
  bool hasFunctionSlow(OutputBuffer& out) const override { return has(out, &Node::hasFunction); }
  const Node* getSyntaxNode(OutputBuffer& out) const override;
  void printLeft(OutputBuffer& out) const override;
  void printRight(OutputBuffer& out) const override;
};

// Returns the node as a T, or null.
template <typename T>
const T* as(const Node* node) {
  return node->getKind() == NodeKind<T>::Kind ? static_cast<const T*>(node) : nullptr;
}
template <>
const TemplateParam* as(const Node* node) {  // the parser makes no LLVM node of this kind
  return node->getKind() == Node::KForwardTemplateReference ? static_cast<const TemplateParam*>(node) : nullptr;
}

struct Parser : AbstractManglingParser<Parser, Arena> {
  using Base = AbstractManglingParser<Parser, Arena>;
  using Base::Base;

  Node* parseEncoding(bool params = true) { return bounded([&] { return Base::parseEncoding(params); }); }
  Node* parseName(NameState* state = nullptr) { return bounded([&] { return Base::parseName(state); }); }
  Node* parseType() { return bounded([&] { return Base::parseType(); }); }
  Node* parseQualifiedType() { return bounded([&] { return Base::parseQualifiedType(); }); }
  Node* parseExpr() { return bounded([&] { return Base::parseExpr(); }); }
  Node* parseBracedExpr() { return bounded([&] { return Base::parseBracedExpr(); }); }
  Node* parseTemplateArg() { return bounded([&] { return parsePack(); }); }
  Node* parseTemplateParamDecl(TemplateParamList* params) {
    return bounded([&] { return Base::parseTemplateParamDecl(params); });
  }

  Node* parseTemplateParam() {
    if (look(1) == 'L') return Base::parseTemplateParam();
    const char* begin = First;
    if (ParsingLambdaParamsAtLevel != static_cast<std::size_t>(-1)) {
      ScopedOverride<bool> known(PermitForwardTemplateReferences, false);
      Node* param = Base::parseTemplateParam();
      // A lambda's declared parameters have their own names.
      if (param != nullptr && param->getKind() == Node::KSyntheticTemplateParamName) return param;
    }
    First = begin + 1;
    const std::string_view number = parseNumber();
    return consumeIf('_') ? make<TemplateParam>(ordinal(number) - 1) : nullptr;
  }

  // g++ writes "sr <type> <name>" in place of the ABI's "sr <name>+ E <name>".
  Node* parseUnresolvedName(bool global) {
    if (look() != 's' || look(1) != 'r') return Base::parseUnresolvedName(global);
    if (std::isdigit(look(2))) {
      const char* begin = First;
      const std::size_t subs = Subs.size(), names = Names.size();
      if (Node* name = Base::parseUnresolvedName(global)) return name;
      First = begin;
      Subs.shrinkToSize(subs);
      Names.shrinkToSize(names);
    }
    First += 2;
    Node* type = parseType();
    Node* name = type == nullptr ? nullptr : parseBaseUnresolvedName();
    return name == nullptr ? nullptr : make<QualifiedName>(type, name);
  }

  Node* parseSourceName(NameState* state) {
    Node* name = Base::parseSourceName(state);
    if (name != nullptr) last_ = name;
    return name;
  }

  Node* parseLocalName(NameState* state) {
    if (!consumeIf('Z')) return nullptr;
    Node* function = parseEncoding();
    if (function == nullptr || !consumeIf('E')) return nullptr;
    Node* entity = nullptr;
    if (consumeIf('s')) {
      entity = make<NameType>("string literal");
    } else {
      // A local type has separate template parameters. The template parameters of a local function also apply to its parameters.
      std::optional<SaveTemplateParams> outer;
      if (state == nullptr) outer.emplace(this);
      if (consumeIf('d')) {
        if (state != nullptr) state->CtorDtorConversion = true;  // these have no return type in GNU's output
        function = make<LocalName>(function, text("{default arg#", ordinal(parseNumber()), "}"));
        if (!consumeIf('_')) return nullptr;
      }
      entity = parseName(state);
      if (entity == nullptr) return nullptr;
    }
    First = parse_discriminator(First, Last);
    return make<LocalName>(function, entity);
  }

  // GNU names a constructor after the last name before it.
  Node* parseCtorDtorName(Node*& scope, NameState* state) {
    Node* last = last_;
    return Base::parseCtorDtorName(last == nullptr || as<SpecialSubstitution>(scope) ? scope : last, state);
  }

  Node* parseSubstitution() {
    Node* type = Base::parseSubstitution();
    if (type != nullptr && as<SpecialSubstitution>(type))
      last_ = make<ExpandedSpecialSubstitution>(static_cast<SpecialSubstitution*>(type));
    return type;
  }

  Node* parseTemplateArgs(bool tag = false) {
    ScopedOverride<Node*> last(last_);
    // LLVM disables this in the arguments of a conversion operator's type.
    ScopedOverride<bool> nested(TryToParseTemplateArgs, true);
    return Base::parseTemplateArgs(tag);
  }

  Node* parseExprPrimary() {
    // For a null pointer, GNU prints the type without a value.
    if (consumeIf("LDnE")) return make<NameType>("std::nullptr_t");
    // LLVM has no literals of char8_t, char16_t and char32_t.
    if (look() != 'L' || look(1) != 'D' || look(2) == 'n') return Base::parseExprPrimary();
    ++First;
    Node* type = parseType();
    const std::string_view value = parseNumber(true);
    return type != nullptr && !value.empty() && consumeIf('E') ? make<EnumLiteral>(type, value) : nullptr;
  }

  // GNU also treats an unnamed type without its scope as a candidate for substitution.
  Node* parseUnnamedTypeName(NameState* state) {
    Node* type = Base::parseUnnamedTypeName(state);
    if (type != nullptr && as<UnnamedTypeName>(type)) Subs.push_back(type);
    return type;
  }

  Node* parseSpecialName() {
    // LLVM lacks these encodings.
    const char* kind = consumeIf("GA")    ? "hidden alias for "
                       : consumeIf("GTt") ? "transaction clone for "
                       : consumeIf("GTn") ? "non-transaction clone for "
                                          : nullptr;
    if (kind == nullptr) return Base::parseSpecialName();
    Node* encoding = parseEncoding();
    return encoding != nullptr ? make<SpecialName>(kind, encoding) : nullptr;
  }

 private:
  template <typename Parse>
  Node* bounded(Parse parse) {
    if (depth_ == kMostDepth || ASTAllocator.used() > kMostMemory) return nullptr;
    ScopedOverride<std::size_t> deeper(depth_, depth_ + 1);
    return parse();
  }

  // Older compilers start a pack with "I".
  Node* parsePack() {
    if (!consumeIf('I')) return Base::parseTemplateArg();
    const std::size_t begin = Names.size();
    while (!consumeIf('E')) {
      Node* arg = parseTemplateArg();
      if (arg == nullptr) return nullptr;
      Names.push_back(arg);
    }
    return make<TemplateArgumentPack>(popTrailingNodeArray(begin));
  }

  Node* text(std::string_view before, std::size_t number, std::string_view after) {
    const std::string all = std::string(before) + std::to_string(number) + std::string(after);
    auto* copy = static_cast<char*>(ASTAllocator.allocate(all.size()));
    return make<NameType>(std::string_view(copy, all.copy(copy, all.size())));
  }

  Node* last_ = nullptr;
  std::size_t depth_ = 0;
};

// Prints nodes. Uses LLVM's printing where it agrees with GNU's.
class Printer final : public OutputBuffer {
 public:
  explicit Printer(std::size_t most) : most_(most) { put(" "); }  // back() always has a character to read
  ~Printer() override { std::free(getBuffer()); }

  // Returns the output, or nothing when a limit was reached.
  std::optional<std::string> text() const {
    if (failed_ || getCurrentPosition() > most_) return std::nullopt;
    return std::string(std::string_view(*this).substr(1));
  }

  void printLeft(const Node& node) override {
    bounded([&] { as<TemplateParam>(&node) ? OutputBuffer::printLeft(node) : node.visit([&](auto* it) { leftOf(*it); }); });
  }
  void printRight(const Node& node) override {
    bounded([&] { as<TemplateParam>(&node) ? OutputBuffer::printRight(node) : node.visit([&](auto* it) { rightOf(*it); }); });
  }

  // Calls use() with the argument of a parameter, or with null.
  template <typename Use>
  auto resolve(const TemplateParam& param, Use use) {
    if (lambda_ || scope_ == nullptr || param.index >= scope_->args.size()) return use(nullptr);
    const Node* arg = scope_->args[param.index];
    if (const auto* pack = as<TemplateArgumentPack>(arg)) arg = &packs_.try_emplace(pack, pack->getElements()).first->second;
    ScopedOverride<const Scope*> outer(scope_, scope_->outer);
    return use(arg);
  }
  void printUnresolved(const TemplateParam& param) {
    print("auto:", param.index + 1);
    if (!lambda_) failed_ = true;
  }

 private:
  // The arguments of the function template that is being printed.
  struct Scope {
    NodeArray args;
    const Scope* outer;
  };
  struct Operand {
    const Node* node;
  };

  template <typename Print>
  void bounded(Print print) {
    if (depth_ == kMostDepth || ++steps_ > most_ || getCurrentPosition() > most_) failed_ = true;
    if (failed_) return;
    ScopedOverride<std::size_t> deeper(depth_, depth_ + 1);
    print();
  }

  template <typename... Parts>
  void print(const Parts&... parts) {
    (put(parts), ...);
  }
  void put(std::string_view text) { *this += text; }
  void put(std::size_t number) { *this << static_cast<unsigned long long>(number); }
  void put(const Node* node) {
    if (node != nullptr) node->print(*this);
  }
  void put(NodeArray nodes) {
    std::size_t end = getCurrentPosition();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (i > 0) put(", ");
      const std::size_t begin = getCurrentPosition();
      put(nodes[i]);
      if (i == 0 || getCurrentPosition() > begin) end = getCurrentPosition();
    }
    if (end == getCurrentPosition()) return;
    // Drops empty packs at the end with their commas. GNU still treats the comma as the last character.
    setCurrentPosition(end);
    erased_ = end;
  }
  void put(Operand operand) { isName(operand.node) ? put(operand.node) : print("(", operand.node, ")"); }

  static bool isName(const Node* node) {
    if (const auto* name = as<NameType>(node)) {
      const std::string_view text = name->getName();
      return !text.starts_with("operator") || (text.size() > 8 && (std::isalnum(text[8]) || text[8] == '_'));
    }
    if (const auto* name = as<QualifiedName>(node)) {
      bool plain = false;
      name->match([&](const Node*, const Node* last) { plain = !as<NameWithTemplateArgs>(last); });
      return plain;
    }
    return as<FunctionParam>(node) || as<NestedName>(node) || as<InitListExpr>(node);
  }

  // The overloads of left() and right() take the parts of a node. LLVM prints nodes without an overload.
  template <typename N>
  void leftOf(const N& node) {
    node.match([&](const auto&... parts) {
      if constexpr (requires { this->left(node, parts...); }) {
        left(node, parts...);
      } else {
        OutputBuffer::printLeft(node);
      }
    });
  }
  void leftOf(const ForwardTemplateReference& node) { OutputBuffer::printLeft(node); }
  template <typename N>
  void rightOf(const N& node) {
    if constexpr (requires { this->right(node); }) {
      right(node);
    } else {
      OutputBuffer::printRight(node);
    }
  }

  // Names.
  void closing() { print(back() == '>' && erased_ != getCurrentPosition() ? " >" : ">"); }

  void left(const TemplateArgs&, NodeArray params, const Node*) {
    print(back() == '<' ? " <" : "<", params);
    closing();
  }
  void left(const TemplateArgumentPack&, NodeArray elements) { put(elements); }
  void left(const NodeArrayNode&, NodeArray nodes) { put(nodes); }
  void left(const ExpandedSpecialSubstitution& node, SpecialSubKind) {
    OutputBuffer::printLeft(node);
    if (back() != '>') return;
    setCurrentPosition(getCurrentPosition() - 1);
    closing();
  }
  void left(const NameType&, std::string_view name) {
    put(name == "std::nullptr_t" ? "decltype(nullptr)" : name == "nullptr" ? "(decltype(nullptr))0" : name);
  }
  void left(const UnnamedTypeName&, std::string_view count) { print("{unnamed type#", ordinal(count), "}"); }
  void left(const ClosureTypeName&, NodeArray types, const Node*, NodeArray params, const Node*, std::string_view count) {
    ScopedOverride<bool> lambda(lambda_, true);
    put("{lambda");
    if (!types.empty()) print("<", types, ">");
    print("(", params, ")#", ordinal(count), "}");
  }
  void left(const SyntheticTemplateParamName&, TemplateParamKind kind, unsigned index) {
    const bool type = kind == TemplateParamKind::Type, value = kind == TemplateParamKind::NonType;
    print(type ? "$T" : value ? "$N" : "$TT", std::size_t{index});
  }
  void left(const TemplateParamPackDecl&, const Node* param) {
    printLeft(*param);
    if (back() == ' ') setCurrentPosition(getCurrentPosition() - 1);
    put("... ");
  }
  // Compilers add suffixes to the names of function clones: ".constprop.0.cold".
  void left(const DotSuffix&, const Node* name, std::string_view suffix) {
    if (!as<FunctionEncoding>(name) && !as<SpecialName>(name) && !as<CtorVtableSpecialName>(name)) failed_ = true;
    put(name);
    const auto end_of = [&](std::string_view letters, std::size_t begin) {
      return std::min(suffix.find_first_not_of(letters, begin), suffix.size());
    };
    for (std::size_t end; !suffix.empty(); suffix.remove_prefix(end)) {
      end = end_of("abcdefghijklmnopqrstuvwxyz0123456789_", 1);
      if (end == 1) failed_ = true;
      while (end + 1 < suffix.size() && suffix[end] == '.' && std::isdigit(suffix[end + 1])) end = end_of("0123456789", end + 1);
      if (end < suffix.size() && suffix[end] != '.') failed_ = true;
      print(" [clone ", suffix.substr(0, end), "]");
    }
  }
  void left(const LocalName&, const Node* encoding, const Node* entity) {
    if (const auto* function = as<FunctionEncoding>(encoding)) {
      inScope(*function, [&] {
        put(function->getName());
        signature(*function);
      });
    } else {
      put(encoding);
    }
    print("::", entity);
  }
  void qualifiers(Qualifiers cv, FunctionRefQual ref) {
    if (cv & QualConst) put(" const");
    if (cv & QualVolatile) put(" volatile");
    if (cv & QualRestrict) put(" restrict");
    if (ref != FrefQualNone) put(ref == FrefQualLValue ? " &" : " &&");
  }
  void signature(const FunctionEncoding& node, const Node* result = nullptr) {
    print("(", node.getParams(), ")");
    qualifiers(node.getCVQuals(), node.getRefQual());
    if (result != nullptr) printRight(*result);
  }
  template <typename... Rest>
  void left(const FunctionEncoding& node, const Node* result, const Node* name, const Rest&...) {
    inScope(node, [&] {
      if (result != nullptr) returned(*result);
      put(name);
    });
  }
  void right(const FunctionEncoding& node) {
    inScope(node, [&] { signature(node, node.getReturnType()); });
  }

  // Types.
  void returned(const Node& type) {
    printLeft(type);
    if (!type.hasRHSComponent(*this)) put(" ");
  }

  // Collapses references to references: calls use() with the final type and kind.
  template <typename Use>
  void collapse(const Node* to, ReferenceKind kind, Use use) {
    const auto* param = as<TemplateParam>(to);
    if (param != nullptr && !lambda_)
      return resolve(*param, [&](const Node* arg) { arg != nullptr ? collapse(arg, kind, use) : use(to, kind); });
    const auto* reference = as<ReferenceType>(to->getSyntaxNode(*this));
    if (reference == nullptr) return use(to, kind);
    reference->match([&](const Node* inner, ReferenceKind other) { collapse(inner, std::min(kind, other), use); });
  }
  template <typename Use>
  void collapsed(const ReferenceType& node, Use use) {
    node.match([&](const Node* to, ReferenceKind kind) {
      // A reference to a parameter keeps the template arguments of its first printing.
      ScopedOverride<const Scope*> first(scope_);
      if (!lambda_ && as<TemplateParam>(to)) scope_ = first_scopes_.try_emplace(to, scope_).first->second;
      collapse(to, kind, use);
    });
  }
  // The part of a pointer or reference to the left of its name.
  void declarator(const Node* to, std::string_view symbol) {
    printLeft(*to);
    if (to->hasArray(*this)) {
      put(" (");
    } else if (to->hasFunction(*this)) {
      put(back() == '(' || back() == '*' || back() == ' ' ? "(" : " (");
    }
    put(symbol);
  }
  void left(const PointerType&, const Node* to) { declarator(to, "*"); }
  void left(const ReferenceType& node, const Node*, ReferenceKind) {
    collapsed(node, [this](const Node* to, ReferenceKind kind) {
      declarator(to, kind == ReferenceKind::LValue ? "&" : "&&");
    });
  }
  void right(const ReferenceType& node) {
    collapsed(node, [this](const Node* to, ReferenceKind) {
      if (to->hasArray(*this) || to->hasFunction(*this)) put(")");
      printRight(*to);
    });
  }
  void left(const PointerToMemberType&, const Node* type, const Node* member) {
    printLeft(*member);
    const bool nested = member->hasArray(*this) || member->hasFunction(*this);
    if (!nested || back() != ' ') put(" ");
    print(nested ? "(" : "", type, "::*");
  }
  int qualifiersOf(const Node* type) {
    if (const auto* param = as<TemplateParam>(type))
      return resolve(*param, [this](const Node* arg) { return arg != nullptr ? qualifiersOf(arg) : 0; });
    if (as<ParameterPack>(type)) {
      const Node* element = type->getSyntaxNode(*this);
      return element != type ? qualifiersOf(element) : 0;
    }
    const auto* qualified = as<QualType>(type);
    return qualified != nullptr ? qualified->getQuals() | qualifiersOf(qualified->getChild()) : 0;
  }
  void left(const QualType&, const Node* child, Qualifiers quals) {
    printLeft(*child);
    qualifiers(static_cast<Qualifiers>(quals & ~qualifiersOf(child)), FrefQualNone);
  }
  template <typename... Rest>
  void left(const FunctionType&, const Node* result, const Rest&...) {
    returned(*result);
  }
  void right(const FunctionType& node) {
    node.match([this](const Node* result, NodeArray params, Qualifiers cv, FunctionRefQual ref, const Node* except) {
      print("(", params, ")");
      if (except != nullptr) print(" ", except);
      qualifiers(cv, ref);
      printRight(*result);
    });
  }
  void left(const VectorType&, const Node* base, const Node* size) { print(base, " __vector(", size, ")"); }
  void left(const PostfixQualifiedType&, const Node* type, std::string_view postfix) {
    print(type, postfix == " complex" ? " _Complex" : postfix == " imaginary" ? " _Imaginary" : postfix);
  }
  void left(const SpecialName&, std::string_view special, const Node* child) {
    if (special == "thread-local wrapper routine for ") special = "TLS wrapper function for ";
    if (special == "thread-local initialization routine for ") special = "TLS init function for ";
    if (special == "reference temporary for ") special = "reference temporary #0 for ";
    print(special, child);
  }
  void left(const ParameterPackExpansion&, const Node* child) {
    constexpr unsigned none = -1u;
    ScopedOverride<unsigned> index(CurrentPackIndex, none), most(CurrentPackMax, none);
    const std::size_t begin = getCurrentPosition();
    put(child);
    if (CurrentPackMax == none || CurrentPackMax == 0) setCurrentPosition(begin);
    if (CurrentPackMax == none) return print(Operand{child}, "...");
    for (unsigned i = 1; i < CurrentPackMax; ++i) {
      CurrentPackIndex = i;
      print(", ", child);
    }
  }

  // Expressions.
  void left(const BinaryExpr&, const Node* a, std::string_view op, const Node* b, Node::Prec) {
    const bool close = op == ">";
    print(close ? "(" : "", Operand{a}, op, Operand{b}, close ? ")" : "");
  }
  void left(const ArraySubscriptExpr&, const Node* a, const Node* b, Node::Prec) { print(Operand{a}, "[", b, "]"); }
  void left(const PostfixExpr&, const Node* a, std::string_view op, Node::Prec) { print(Operand{a}, op); }
  void left(const ConditionalExpr&, const Node* a, const Node* b, const Node* c, Node::Prec) {
    print(Operand{a}, "?", Operand{b}, " : ", Operand{c});
  }
  void left(const MemberExpr&, const Node* a, std::string_view op, const Node* b, Node::Prec) {
    print(Operand{a}, op, Operand{b});
  }
  void left(const PrefixExpr&, std::string_view op, const Node* a, Node::Prec) {
    const auto* f = as<FunctionEncoding>(a);
    const bool plain = f != nullptr && f->getCVQuals() == QualNone && f->getRefQual() == FrefQualNone;
    if (op == "&" && plain && as<NestedName>(f->getName())) return print("&", f->getName());
    print(op, Operand{a});
  }
  void left(const EnclosingExpr&, std::string_view prefix, const Node* inner, Node::Prec) {
    if (prefix == "decltype") return print("decltype (", inner, ")");
    if (prefix == "sizeof... ") return put(as<NodeArrayNode>(inner) ? count(as<NodeArrayNode>(inner)->Array) : 0);
    if (as<FunctionParam>(inner) || as<InitListExpr>(inner)) return print(prefix, inner);
    print(prefix, "(", inner, ")");
  }
  std::size_t size(const Node* node) {
    std::size_t n = 0;
    if (const auto* param = as<TemplateParam>(node))
      resolve(*param, [&](const Node* arg) {
        const auto* pack = arg != nullptr ? as<ParameterPack>(arg) : nullptr;
        if (pack != nullptr) pack->match([&](NodeArray elements) { n = elements.size(); });
      });
    return n;
  }
  std::size_t count(NodeArray nodes) {
    std::size_t n = 0;
    for (const Node* node : nodes) {
      const auto* pack = as<ParameterPackExpansion>(node);
      n += pack != nullptr ? size(pack->getChild()) : 1;
    }
    return n;
  }
  void left(const SizeofParamPackExpr&, const Node* pack) { put(size(pack)); }
  void left(const CastExpr&, std::string_view kind, const Node* to, const Node* from, Node::Prec) {
    print(kind, "<", to, ">(", from, ")");
  }
  void left(const CallExpr&, const Node* callee, NodeArray args, bool, Node::Prec) {
    if (const auto* function = as<FunctionEncoding>(callee)) callee = function->getName();
    print(Operand{callee}, "(", args, ")");
  }
  void left(const NewExpr&, NodeArray place, const Node* type, NodeArray init, bool global, bool, Node::Prec) {
    print(global ? "::" : "", "new ");
    if (!place.empty()) print("(", place, ") ");
    put(type);
    if (!init.empty()) print("(", init, ")");
  }
  void left(const DeleteExpr&, const Node* a, bool global, bool array, Node::Prec) {
    print(global ? "::" : "", array ? "delete[] " : "delete ", Operand{a});
  }
  void left(const ThrowExpr&, const Node* a) { print("throw ", Operand{a}); }
  void left(const FunctionParam&, std::string_view number) { print("{parm#", ordinal(number), "}"); }
  void left(const ConversionExpr&, const Node* type, NodeArray args, Node::Prec) {
    print("(", type, ")");
    if (args.size() == 1) return put(Operand{args[0]});
    print("(", args, ")");
  }
  void left(const InitListExpr&, const Node* type, NodeArray inits) { print(type, "{", inits, "}"); }
  void left(const BracedExpr&, const Node* field, const Node* init, bool array) {
    print(array ? "[" : ".", field, array ? "]=" : "=", Operand{init});
  }
  void left(const BracedRangeExpr&, const Node* first, const Node* last, const Node* init) {
    print("[", first, " ... ", last, "]=", Operand{init});
  }
  void left(const FoldExpr&, bool left, std::string_view op, const Node* pack, const Node* init) {
    const Node* first = left ? init : pack;
    const Node* last = left ? pack : init;
    put("(");
    if (first != nullptr) print(Operand{first}, op);
    put("...");
    if (last != nullptr) print(op, Operand{last});
    put(")");
  }
  void left(const FloatLiteral&, std::string_view hex) { print("(float)[", hex, "]"); }
  void left(const DoubleLiteral&, std::string_view hex) { print("(double)[", hex, "]"); }
  void left(const LongDoubleLiteral&, std::string_view hex) { print("(long double)[", hex, "]"); }

  // Returns the template arguments at the end of a name, or null.
  static const TemplateArgs* arguments(const Node* name) {
    if (const auto* local = as<LocalName>(name)) return arguments(local->Entity);
    const auto* instance = as<NameWithTemplateArgs>(name);
    return instance != nullptr ? as<TemplateArgs>(instance->TemplateArgs) : nullptr;
  }
  template <typename Print>
  void inScope(const FunctionEncoding& node, Print print) {
    ScopedOverride<const Scope*> outer(scope_);
    if (const TemplateArgs* args = arguments(node.getName()))
      args->match([this](NodeArray params, const Node*) { scope_ = &scopes_.emplace_back(Scope{params, scope_}); });
    print();
  }

  const std::size_t most_;
  std::size_t depth_ = 0, steps_ = 0;
  std::size_t erased_ = 0;  // the position of the last erased output
  bool failed_ = false;
  bool lambda_ = false;  // within the parameters of a lambda
  const Scope* scope_ = nullptr;
  std::deque<Scope> scopes_;
  std::unordered_map<const Node*, const Scope*> first_scopes_;
  std::unordered_map<const Node*, ParameterPack> packs_;
};

bool TemplateParam::has(OutputBuffer& out, bool (Node::*what)(OutputBuffer&) const) const {
  return static_cast<Printer&>(out).resolve(*this, [&](const Node* arg) { return arg != nullptr && (arg->*what)(out); });
}
const Node* TemplateParam::getSyntaxNode(OutputBuffer& out) const {
  auto get = [&](const Node* arg) { return arg != nullptr ? arg->getSyntaxNode(out) : this; };
  return static_cast<Printer&>(out).resolve(*this, get);
}
void TemplateParam::printLeft(OutputBuffer& out) const {
  auto& printer = static_cast<Printer&>(out);
  printer.resolve(*this, [&](const Node* arg) { arg != nullptr ? out.printLeft(*arg) : printer.printUnresolved(*this); });
}
void TemplateParam::printRight(OutputBuffer& out) const {
  auto print = [&](const Node* arg) {
    if (arg != nullptr) out.printRight(*arg);
  };
  static_cast<Printer&>(out).resolve(*this, print);
}

}  // namespace

std::string demangle(const std::string& name) {
  if (!name.starts_with("_Z") || name.size() > kMostName) return name;
  Parser parser(name.data(), name.data() + name.size());
  const Node* root = parser.parse();
  if (root == nullptr) return name;
  Printer printer(kLeastText + kTimes * name.size());
  root->print(printer);
  return printer.text().value_or(name);
}

}  // namespace cutrace
