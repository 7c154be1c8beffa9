#include "chat_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "options.h"

namespace kvik::cli {
namespace {

constexpr size_t kMaxDepth = 90;

// Builds a ChatValue from the events of a JSON text. As in Python, the last of equal keys counts.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  ChatValue take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return too_large(std::to_string(value));
    return add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return too_large(text);
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(ChatObject()); }
  bool start_array(size_t /*size*/) override { return open(ChatArray()); }
  bool key(string_t& value) override {
    keys_.back() = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_ = "not JSON (byte " + std::to_string(position) + ")";
    return false;
  }

 private:
  bool too_large(const std::string& number) {
    error_ = "the integer " + number + " is beyond 64 bits";
    return false;
  }

  bool open(ChatValue container) {
    if (stack_.size() >= kMaxDepth) {
      error_ = "nested deeper than " + std::to_string(kMaxDepth);
      return false;
    }
    stack_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    ChatValue value = std::move(stack_.back());
    stack_.pop_back();
    keys_.pop_back();
    return add(std::move(value));
  }

  bool add(ChatValue value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    if (auto* array = std::get_if<ChatArray>(&stack_.back().data)) {
      array->push_back(std::move(value));
      return true;
    }
    auto& object = std::get<ChatObject>(stack_.back().data);
    const auto same = std::find_if(object.begin(), object.end(), [this](const auto& member) {
      return member.first == keys_.back();
    });
    if (same != object.end()) {
      same->second = std::move(value);
    } else {
      object.emplace_back(std::move(keys_.back()), std::move(value));
    }
    return true;
  }

  std::vector<ChatValue> stack_;
  std::vector<std::string> keys_;  // one for each of stack_
  ChatValue root_;
  std::string error_;
};

Result<ChatValue> parse_value(const std::string& text, const std::string& origin) {
  ValueBuilder builder;
  if (!nlohmann::json::sax_parse(text, &builder)) {
    return Status(StatusCode::corrupt, origin + ": " + builder.error());
  }
  return builder.take();
}

Result<ChatValue> read_value(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text.ok()) return text.status();
  return parse_value(*text, path);
}

Result<std::vector<ChatMessage>> to_messages(ChatValue value, const std::string& path) {
  const Status wrong(StatusCode::corrupt,
                     path + R"(: give a JSON array like [{"role": "user", "content": "Hello"}])");
  auto* array = std::get_if<ChatArray>(&value.data);
  if (array == nullptr) return wrong;
  std::vector<ChatMessage> messages;
  for (ChatValue& item : *array) {
    auto* object = std::get_if<ChatObject>(&item.data);
    if (object == nullptr) return wrong;
    const auto role = std::find_if(object->begin(), object->end(),
                                   [](const auto& member) { return member.first == "role"; });
    const std::string number = std::to_string(messages.size() + 1);
    if (role == object->end() || !std::holds_alternative<std::string>(role->second.data)) {
      return Status(StatusCode::corrupt,
                    path + ": message " + number + " has no \"role\" that is a string");
    }
    // An assistant may have said nothing.
    if (object->size() == 1 && std::get<std::string>(role->second.data) != "assistant") {
      return Status(StatusCode::corrupt,
                    path + ": message " + number + " holds nothing but its role; give \"content\"");
    }
    for (const auto& [key, member] : *object) {
      if (key == "content" && !member.is_null() &&
          !std::holds_alternative<std::string>(member.data) &&
          !std::holds_alternative<ChatArray>(member.data)) {
        return Status(StatusCode::corrupt, path + ": \"content\" of message " + number +
                                               " is neither text, an array of parts nor null");
      }
    }
    messages.emplace_back(std::move(*object));
  }
  return messages;
}

Result<ChatTemplate> read_template(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text.ok()) return text.status();
  Result<ChatTemplate> chat_template = ChatTemplate::parse(*text);
  if (!chat_template.ok()) {
    return Status(chat_template.status().code(), path + ": " + chat_template.status().message());
  }
  return chat_template;
}

bool is_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") ==
             std::string_view::npos;
}

}  // namespace

std::string ChatOptions::given() const {
  for (const CLI::Option* option : {variables_option, tools_option, template_option}) {
    if (option->count() > 0) return name_given(*option);
  }
  return "";
}

void add_chat_options(CLI::App& command, ChatOptions& options) {
  options.variables_option =
      command
          .add_option("--template-var", options.variables,
                      "Variable of the chat template, like enable_thinking=false; may be repeated")
          ->type_name("NAME=JSON")
          ->allow_extra_args(false);
  options.tools_option =
      command
          .add_option("--tools", options.tools_file, "File with a JSON array of tools for the chat")
          ->type_name("FILE");
  options.template_option = command
                                .add_option("--chat-template-file", options.template_file,
                                            "Chat template (Jinja) in place of the model's own")
                                ->type_name("FILE");
}

Result<ChatSettings> read_chat_settings(const ChatOptions& options) {
  ChatSettings settings;
  if (!options.tools_file.empty()) {
    Result<ChatValue> tools = read_value(options.tools_file);
    if (!tools.ok()) return tools.status();
    if (!std::holds_alternative<ChatArray>(tools->data)) {
      return Status(StatusCode::corrupt, options.tools_file + ": " +
                                             name_given(*options.tools_option) +
                                             " needs a JSON array of tools");
    }
    settings.variables["tools"] = std::move(tools).value();
  }
  const std::string said = name_given(*options.variables_option) + " ";
  for (const std::string& option : options.variables) {
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals);
    if (equals == std::string::npos || !is_name(name)) {
      return invalid_argument(said + option + ": give NAME=JSON, like enable_thinking=false");
    }
    for (const char* set : {"messages", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (name == set) {
        return invalid_argument(said + name + ": this variable is set already");
      }
    }
    if (settings.variables.contains(name)) {
      return invalid_argument(said + name + ": this variable is given twice" +
                              (name == "tools" && !options.tools_file.empty()
                                   ? ", by " + name_given(*options.tools_option) + " too"
                                   : ""));
    }
    Result<ChatValue> value = parse_value(option.substr(equals + 1), said + option);
    if (!value.ok()) {
      return invalid_argument(value.status().message() + R"(; a string is written as NAME="text")");
    }
    settings.variables[name] = std::move(value).value();
  }
  if (!options.template_file.empty()) {
    Result<ChatTemplate> own = read_template(options.template_file);
    if (!own.ok()) return own.status();
    settings.own_template = std::make_shared<const ChatTemplate>(std::move(own).value());
  }
  return settings;
}

Result<ChatRequest> read_chat_request(const std::string& path) {
  Result<ChatValue> value = read_value(path);
  if (!value.ok()) return value.status();
  ChatRequest request;
  ChatValue list = ChatValue();
  if (auto* object = std::get_if<ChatObject>(&value->data)) {
    for (auto& [key, member] : *object) {
      if (key == "messages") {
        list = std::move(member);
      } else if (key == "add_generation_prompt") {
        if (member.is_null()) continue;
        const bool* flag = std::get_if<bool>(&member.data);
        if (flag == nullptr) {
          return Status(StatusCode::corrupt,
                        path + ": \"add_generation_prompt\" is neither true nor false");
        }
        request.add_generation_prompt = *flag;
      } else if (key == "chat_template_kwargs") {
        if (member.is_null()) continue;
        auto* more = std::get_if<ChatObject>(&member.data);
        if (more == nullptr) {
          return Status(StatusCode::corrupt, path + ": \"chat_template_kwargs\" is no object");
        }
        for (auto& [name, item] : *more) {
          if (!request.variables.emplace(name, std::move(item)).second) {
            return Status(StatusCode::corrupt, path + ": \"" + name + "\" is given twice");
          }
        }
      } else if (!request.variables.emplace(key, std::move(member)).second) {
        return Status(StatusCode::corrupt, path + ": \"" + key + "\" is given twice");
      }
    }
  } else {
    list = std::move(value).value();
  }
  Result<std::vector<ChatMessage>> messages = to_messages(std::move(list), path);
  if (!messages.ok()) return messages.status();
  request.messages = std::move(messages).value();
  return request;
}

Result<RenderedChat> render_chat(const Model& model, const ChatSettings& settings,
                                 std::vector<ChatMessage> messages, bool add_generation_prompt) {
  const ChatTemplate* chat = settings.own_template.get();
  if (chat == nullptr) {
    Result<const ChatTemplate*> own = model.chat_template();
    if (!own.ok()) return own.status();
    chat = *own;
  }
  const Tokenizer& tokenizer = model.tokenizer();
  ChatInput input;
  input.messages = std::move(messages);
  input.add_generation_prompt = add_generation_prompt;
  input.variables = settings.variables;
  if (const auto bos = tokenizer.bos()) input.bos_token = tokenizer.piece(*bos).value();
  if (const auto eos = tokenizer.eos()) input.eos_token = tokenizer.piece(*eos).value();
  return chat->render(input);
}

Result<std::vector<TokenId>> chat_ids(const Model& model, const ChatSettings& settings,
                                      std::vector<ChatMessage> messages) {
  Result<RenderedChat> chat = render_chat(model, settings, std::move(messages), true);
  if (!chat.ok()) return chat.status();
  EncodeOptions encode;
  encode.add_special = false;
  return model.tokenizer().encode_spans(chat->spans(), encode);
}

}  // namespace kvik::cli
