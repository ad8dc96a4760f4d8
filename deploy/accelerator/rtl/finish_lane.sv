// What becomes of a sum: rounded, scaled, biased, through ReLU or tanh, saturated, quantised to 16 bits.
// A name ends in the stage whose register it is; sums are
// stage 0's (the sum over the cores), the bias is wanted in stage 3, results are stage 26's.
module finish_lane (
    input  logic               clock,
    input  logic signed [63:0] upper,
    input  logic signed [63:0] lower,
    input  logic               affine,
    input  logic         [5:0] shift,
    input  logic        [15:0] mantissa,
    input  logic         [5:0] scale_shift,
    input  logic signed [31:0] bias,
    input  logic         [5:0] bias_shift,
    input  logic               relu,
    input  logic               tanh,
    input  logic        [15:0] quantum,
    input  logic         [4:0] quantum_shift,
    output logic signed [31:0] value,
    output logic        [15:0] quantised
); /* verilator no_inline_module */
    localparam logic signed [63:0] WIDE = 64'sd140737488355327;
    localparam logic signed [63:0] HIGH = 64'sd2147483647;

    function automatic logic signed [63:0] wide(input logic signed [63:0] x);
        wide = x > WIDE ? WIDE : (x < -WIDE - 64'sd1 ? -WIDE - 64'sd1 : x);
    endfunction
    function automatic logic signed [31:0] saturated(input logic signed [63:0] x);
        saturated = x > HIGH ? 32'sh7fffffff : (x < -HIGH - 64'sd1 ? 32'sh80000000 : x[31:0]);
    endfunction

    // Stages 1 to 3: the two sums become one, rounded.
    logic signed [83:0] sum_1;
    logic signed [63:0] kept_1, value_2, value_3;
    logic affine_1, affine_2;
    wire signed [83:0] half = shift == 0 ? 84'sd0 : 84'sd1 <<< (shift - 6'd1);
    wire signed [83:0] rounded = (sum_1 + half) >>> shift;
    wire signed [83:0] limit = 84'(WIDE);
    wire signed [63:0] halved = (value_2 >>> (scale_shift - 6'd1)) + 64'sd1;
    wire signed [31:0] bias_half = bias_shift == 0 ? 32'sd0 : 32'sd1 <<< (bias_shift - 6'd1);
    wire signed [63:0] biased = value_3 + ((64'(bias) + 64'(bias_half)) >>> bias_shift);
    // Stages 4 to 7: activation, and tanh by table.
    logic signed [31:0] value_4, value_5, value_6, value_7;
    logic               beyond_5, beyond_6;
    logic        [34:0] entry_5;
    logic        [12:0] rest_5;
    logic        [26:0] rise_6;
    logic        [20:0] base_6;
    wire         [31:0] size_4 = value_4 < 0 ? -value_4 : value_4;
    logic        [34:0] segments [0:1023];
    initial $readmemh("tanh.hex", segments);
    wire         [20:0] between = 21'(base_6 + 21'((rise_6 + 27'd4096) >> 13));
    wire         [20:0] found = beyond_6 ? 21'd1048576 : between;
    // Stages 8 to 25: the quotient of Algorithm 1.
    logic signed [31:0] values [8:25];
    wire         [62:0] scaled_7 = value_7 < 0 ? 63'd0 : {31'd0, value_7} << quantum_shift;
    wire         [16:0] quotient;
    divider #(.NUMERATOR(63), .DENOMINATOR(16), .QUOTIENT(17)) quantiser (
        .clock(clock), .numerator(scaled_7), .denominator(quantum), .quotient(quotient)
    );

    integer i;
    always_ff @(posedge clock) begin
        sum_1 <= (84'(upper) <<< 16) + 84'(lower);
        kept_1 <= wide((lower + 64'sd128) >>> 8);
        value_2 <= affine_1 ? kept_1 * $signed({48'd0, mantissa})
                          : 64'(rounded > limit ? limit : (rounded < -limit - 84'sd1 ? -limit - 84'sd1 : rounded));
        value_3 <= affine_2 ? wide(scale_shift == 0 ? value_2 : halved >>> 1) : value_2;
        {affine_1, affine_2} <= {affine, affine_1};
        value_4 <= relu && biased < 0 ? 32'sd0 : saturated(biased);
        value_5 <= value_4;
        entry_5 <= segments[size_4[22:13]];
        rest_5 <= size_4[12:0];
        beyond_5 <= |size_4[31:23];
        value_6 <= value_5;
        beyond_6 <= beyond_5;
        base_6 <= entry_5[34:14];
        rise_6 <= entry_5[13:0] * rest_5;
        value_7 <= !tanh ? value_6 : (value_6 < 0 ? -$signed({11'd0, found}) : $signed({11'd0, found}));
        values[8] <= value_7;
        for (i = 8; i < 25; i = i + 1) values[i+1] <= values[i];
        value <= values[25];
        quantised <= quotient[16] ? 16'hffff : quotient[15:0];
    end
endmodule
